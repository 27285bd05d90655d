import { inspect, type InspectOptions } from 'node:util';

const MOST_ELEMENTS = 8;

const oneLine: InspectOptions = {
  maxArrayLength: MOST_ELEMENTS,
  maxStringLength: 100,
  breakLength: Infinity,
  compact: true,
  customInspect: false,
};

/** Reading an object with more names would take too long. */
const MOST_NAMES = 100;

/** A value for error messages: always short. */
export function formatValue(value: unknown): string {
  if (typeof value === 'string') {
    return `"${truncate(value)}"`;
  }
  try {
    return truncate(shown(value));
  } catch {
    return 'a value that cannot be shown';
  }
}

/** Like {@link formatValue}, but only a list's length. */
export function formatList(value: unknown): string {
  return Array.isArray(value) ? `a list of ${value.length}` : formatValue(value);
}

export function truncate(text: string, most = 200): string {
  return text.length > most ? `${text.slice(0, most)}... (${text.length} characters)` : text;
}

/** Longest gRPC status text in bytes; several clients refuse headers above 8 KiB in all. */
const STATUS_BYTES = 4096;

/**
 * Cuts a text to fit a gRPC header, where it is percent-encoded. Half a surrogate pair, which can't
 * be encoded, becomes the replacement character.
 */
export function statusText(text: string): string {
  const encodable = Buffer.from(text.slice(0, STATUS_BYTES)).toString();
  let bytes = 0;
  let end = 0;
  for (const character of encodable) {
    bytes += encodeURI(character).length;
    if (bytes > STATUS_BYTES) {
      break;
    }
    end += character.length;
  }
  const isWhole = end === encodable.length && text.length <= STATUS_BYTES;
  return isWhole ? encodable : `${encodable.slice(0, end)}... (${text.length} characters)`;
}

function shown(value: unknown): string {
  if (value instanceof Promise) {
    // Its maker gets an error that names it. Its own, which nothing handles, would end the process.
    value.catch(() => {});
    return 'a promise';
  }
  if (value instanceof Error) {
    return `${value.name}: ${value.message}`;
  }
  const names = namesOf(value);
  return names.length > MOST_NAMES
    ? `an object with ${names.length} names`
    : inspect(value, { ...oneLine, depth: depthOf(value, names) });
}

/** Shows one level more, unless the value is too large. */
function depthOf(value: unknown, names: readonly string[]): number {
  const parts: unknown[] = Array.isArray(value)
    ? value.slice(0, MOST_ELEMENTS)
    : names.map((name) => Object.getOwnPropertyDescriptor(value, name)?.value);
  return parts.some((part) => namesOf(part).length > MOST_NAMES) ? 0 : 1;
}

/** Lists show their first elements, without names. */
function namesOf(value: unknown): readonly string[] {
  return typeof value !== 'object' ||
    value === null ||
    Array.isArray(value) ||
    ArrayBuffer.isView(value)
    ? []
    : Object.keys(value);
}

/** Omits the content: safe for messages to clients. */
export function typeName(value: unknown): string {
  if (value === null) {
    return 'null';
  }
  if (typeof value !== 'object') {
    return `a ${typeof value}`;
  }
  const { constructor }: { constructor?: unknown } = value;
  return typeof constructor === 'function'
    ? `an instance of ${constructor.name || 'a class'}`
    : 'an object';
}

/** Names what code returned in place of a list: `string`, `object`, `an instance of Set`. */
export function returnedType(value: unknown): string {
  return value === null || (value instanceof Object && value.constructor !== Object)
    ? typeName(value)
    : typeof value;
}

/** Example: `2.31 MB`. */
export function formatBytes(bytes: number): string {
  const units = ['bytes', 'kB', 'MB', 'GB'];
  const unit = Math.min(Math.floor(Math.log10(Math.max(bytes, 1)) / 3), units.length - 1);
  return `${Number((bytes / 1000 ** unit).toPrecision(3))} ${units[unit]}`;
}

/** A TypeScript literal. */
export function literalOf(text: string): string {
  const inside = JSON.stringify(text).slice(1, -1).replaceAll('\\"', '"');
  return `'${inside.replaceAll("'", String.raw`\'`)}'`;
}

export function countOfRows(count: number): string {
  return countOf(count, 'row');
}

/** For nouns with a regular plural. */
export function countOf(count: number, noun: string): string {
  const ending = noun.endsWith('s') ? 'es' : 's';
  return `${count} ${noun}${count === 1 ? '' : ending}`;
}

/** Quotes a TypeScript property name if necessary. */
export function propertyOf(name: string): string {
  return /^[A-Za-z_$][\w$]*$/.test(name) ? name : literalOf(name);
}

/** The name probably meant, which differs in few letters. */
export function closestName(name: string, known: readonly string[]): string | undefined {
  const most = Math.max(1, Math.floor(name.length / 3));
  const near = known
    .map((each) => ({ each, distance: distanceOf(name.toLowerCase(), each.toLowerCase()) }))
    .filter(({ distance }) => distance <= most)
    .toSorted((one, other) => one.distance - other.distance);
  return near[0]?.each;
}

/** Levenshtein distance, where two letters in the wrong order count once. */
function distanceOf(one: string, other: string): number {
  let before: number[] = [];
  let above = Array.from({ length: other.length + 1 }, (_, column) => column);
  for (let row = 0; row < one.length; row++) {
    const current = [row + 1];
    for (let column = 0; column < other.length; column++) {
      const replaced = above[column]! + (one[row] === other[column] ? 0 : 1);
      const isSwap = one[row] === other[column - 1] && one[row - 1] === other[column];
      const swapped = isSwap ? before[column - 1]! + 1 : Infinity;
      current.push(Math.min(replaced, swapped, above[column + 1]! + 1, current[column]! + 1));
    }
    [before, above] = [above, current];
  }
  return above.at(-1)!;
}
