import { FrameError } from './prelude.js';

/** The header of a frame that a stranger may have written. */
export type Header = Readonly<Record<string, unknown>>;

/** @throws FrameError when it is no whole number of 0 or more */
export function wholeIn(header: Header, name: string): number {
  const value = header[name];
  if (!Number.isSafeInteger(value) || (value as number) < 0) {
    throw new FrameError(`The header has no whole number "${name}"`);
  }
  return value as number;
}

/** @throws FrameError when it is there and no number of 0 or more */
export function amountIn(header: Header, name: string): number | undefined {
  const value = header[name];
  if (value !== undefined && !(typeof value === 'number' && value >= 0 && value < Infinity)) {
    throw new FrameError(`"${name}" in the header is no number of 0 or more`);
  }
  return value;
}

/** @throws FrameError when it is there and no text */
export function textIn(header: Header, name: string): string | undefined {
  const value = header[name];
  if (value !== undefined && typeof value !== 'string') {
    throw new FrameError(`"${name}" in the header is no text`);
  }
  return value;
}

/** @throws FrameError when it is there and no list of texts */
export function textsIn(header: Header, name: string): readonly string[] | undefined {
  const value = header[name];
  if (
    value !== undefined &&
    !(Array.isArray(value) && value.every((each) => typeof each === 'string'))
  ) {
    throw new FrameError(`"${name}" in the header is no list of texts`);
  }
  return value;
}
