import { formatValue } from '../../../internal.js';
import { FrameError } from './prelude.js';

/** Fields sent by another node: a frame's header, or a record in it. */
export type Header = Readonly<Record<string, unknown>>;

/** @throws FrameError unless the value is an object and not a list */
export function recordOf(value: unknown, what: string): Header {
  if (typeof value !== 'object' || value === null || Array.isArray(value)) {
    throw new FrameError(`${what} is ${formatValue(value)}, not an object`);
  }
  return value as Header;
}

/** @throws FrameError unless the field is a list of at most `most` elements */
export function listIn(record: Header, name: string, most: number): readonly unknown[] {
  const value = record[name];
  return Array.isArray(value) && value.length <= most
    ? value
    : malformed(name, value, `a list of at most ${most}`);
}

/** @throws FrameError unless the field is a whole number from 0 to `most` */
export function wholeIn(record: Header, name: string, most = Number.MAX_SAFE_INTEGER): number {
  const value = record[name];
  return Number.isInteger(value) && (value as number) >= 0 && (value as number) <= most
    ? (value as number)
    : malformed(name, value, `a whole number ${upTo(most)}`);
}

/** @throws FrameError unless the field is a number from 0 to `most` */
export function numberIn(record: Header, name: string, most = Number.MAX_SAFE_INTEGER): number {
  const value = record[name];
  return typeof value === 'number' && value >= 0 && value <= most
    ? value
    : malformed(name, value, `a number ${upTo(most)}`);
}

/** @throws FrameError unless the field is true or false */
export function flagIn(record: Header, name: string): boolean {
  const value = record[name];
  return typeof value === 'boolean' ? value : malformed(name, value, 'true or false');
}

/** @throws FrameError unless the field is a string that matches the pattern */
export function stringIn(record: Header, name: string, pattern: RegExp): string {
  const value = record[name];
  return typeof value === 'string' && pattern.test(value)
    ? value
    : malformed(name, value, `a string that matches ${String(pattern)}`);
}

/** @throws FrameError unless the field is missing or a string */
export function optionalStringIn(record: Header, name: string): string | undefined {
  const value = record[name];
  return value === undefined || typeof value === 'string'
    ? value
    : malformed(name, value, 'a string');
}

/** @throws FrameError unless the field is missing or a list of strings */
export function optionalStringsIn(record: Header, name: string): readonly string[] | undefined {
  const value = record[name];
  return value === undefined ||
    (Array.isArray(value) && value.every((each) => typeof each === 'string'))
    ? value
    : malformed(name, value, 'a list of strings');
}

/** @throws FrameError unless the field is one of these strings */
export function oneOfIn<Value extends string>(
  record: Header,
  name: string,
  allowed: readonly Value[],
): Value {
  const value = record[name];
  return (
    allowed.find((each) => each === value) ??
    malformed(name, value, allowed.map((each) => `"${each}"`).join(' or '))
  );
}

function upTo(most: number): string {
  return most < Number.MAX_SAFE_INTEGER ? `from 0 to ${most}` : 'of 0 or more';
}

function malformed(name: string, value: unknown, allowed: string): never {
  throw new FrameError(`Field "${name}" is ${formatValue(value)}; allowed is ${allowed}`);
}
