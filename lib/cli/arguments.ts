import { readFileSync } from 'node:fs';
import { InvalidArgumentError } from 'commander';
import { messageOf } from '../errors.js';

/** Milliseconds of `50ms`, `0.5s` or `50`. */
export function parseDuration(text: string): number {
  const [, number, unit] = /^(\d+(?:\.\d+)?)(ms|s|m)?$/.exec(text) ?? [];
  const factor = { ms: 1, s: 1000, m: 60_000 }[unit ?? 'ms']!;
  const milliseconds = Number(number) * factor;
  if (!(milliseconds > 0)) {
    throw new InvalidArgumentError('Give a time such as 50ms, 2s or 1m.');
  }
  return milliseconds;
}

/** Positive whole numbers of `1,2,4`. */
export function parseWholes(text: string): readonly number[] {
  const numbers = text.split(',').map(Number);
  if (!numbers.every((number) => Number.isSafeInteger(number) && number > 0)) {
    throw new InvalidArgumentError('Give whole numbers from 1 on, such as 1,2,4.');
  }
  return numbers;
}

/** One positive whole number. */
export function parseWhole(text: string): number {
  const [number, ...others] = parseWholes(text);
  if (others.length > 0) {
    throw new InvalidArgumentError('Give one whole number.');
  }
  return number!;
}

/** Positive numbers of `0.5,100`. */
export function parseNumbers(text: string): readonly number[] {
  const numbers = text.split(',').map(Number);
  if (!numbers.every((number) => Number.isFinite(number) && number > 0)) {
    throw new InvalidArgumentError('Give numbers above 0, such as 100,200.');
  }
  return numbers;
}

/** Adds the shape of `image=1x3x224x224` to those before. */
export function parseShape(
  text: string,
  before: Readonly<Record<string, readonly number[]>> = {},
): Readonly<Record<string, readonly number[]>> {
  const at = text.lastIndexOf('=');
  const dims = text
    .slice(at + 1)
    .split('x')
    .map(Number);
  if (at < 1 || !dims.every((size) => Number.isSafeInteger(size) && size >= 0)) {
    throw new InvalidArgumentError('Give a name and sizes, such as image=1x3x224x224.');
  }
  return { ...before, [text.slice(0, at)]: dims };
}

/** The text itself, or of `@row.json` that of the file. */
export function parseInput(text: string): string {
  if (!text.startsWith('@')) {
    return text;
  }
  try {
    return readFileSync(text.slice(1), 'utf8');
  } catch (error) {
    throw new InvalidArgumentError(`The file cannot be read: ${messageOf(error)}`);
  }
}

/** Adds the header of `x-api-key: secret` to those before. */
export function parseHeader(
  text: string,
  before: Readonly<Record<string, string>> = {},
): Readonly<Record<string, string>> {
  const [, name, value] = /^([\w-]+):\s*(.+)$/.exec(text) ?? [];
  if (name === undefined || value === undefined) {
    throw new InvalidArgumentError("Give a name and a value, such as 'x-api-key: secret'.");
  }
  return { ...before, [name]: value };
}
