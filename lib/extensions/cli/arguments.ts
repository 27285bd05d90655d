import { readFileSync } from 'node:fs';
import { InvalidArgumentError } from 'commander';
import { messageOf } from '../../internal.js';

/** `50ms`, `0.5s` or `50` in milliseconds. */
export function parseDuration(text: string): number {
  const [, number, unit] = /^(\d+(?:\.\d+)?)(ms|s|m)?$/.exec(text) ?? [];
  const factor = { ms: 1, s: 1000, m: 60_000 }[unit ?? 'ms']!;
  const milliseconds = Number(number) * factor;
  if (!(milliseconds > 0)) {
    throw new InvalidArgumentError('Give a time such as 50ms, 2s or 1m.');
  }
  return milliseconds;
}

/** `1,2,4` */
export function parseWholes(text: string): readonly number[] {
  const numbers = text.split(',').map(Number);
  if (!numbers.every((number) => Number.isSafeInteger(number) && number > 0)) {
    throw new InvalidArgumentError('Give whole numbers from 1 on, such as 1,2,4.');
  }
  return numbers;
}

/** A positive whole number. */
export function parseWhole(text: string): number {
  const [number, ...others] = parseWholes(text);
  if (others.length > 0) {
    throw new InvalidArgumentError('Give one whole number.');
  }
  return number!;
}

/** `0.5,100` */
export function parseNumbers(text: string): readonly number[] {
  const numbers = text.split(',').map(Number);
  if (!numbers.every((number) => Number.isFinite(number) && number > 0)) {
    throw new InvalidArgumentError('Give numbers above 0, such as 100,200.');
  }
  return numbers;
}

/** Adds `image=1x3x224x224` to the previous shapes. */
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

/** `@row.json` reads the file. */
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

/** Adds `x-api-key: secret` to the previous headers. */
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
