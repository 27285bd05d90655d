import { inspect, type InspectOptions } from 'node:util';

const MOST_ELEMENTS = 8;

const oneLine: InspectOptions = {
  maxArrayLength: MOST_ELEMENTS,
  maxStringLength: 100,
  breakLength: Infinity,
  compact: true,
  customInspect: false,
};

/** With more names than this an object is not shown: it would take as long as it has names. */
const MOST_NAMES = 100;

/** A value as error messages show it: short, whatever it is. */
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

/** The text, or its beginning and how long it is. */
export function truncate(text: string, most = 200): string {
  return text.length > most ? `${text.slice(0, most)}... (${text.length} characters)` : text;
}

function shown(value: unknown): string {
  if (value instanceof Promise) {
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

/** One level deeper, unless there is too much. */
function depthOf(value: unknown, names: readonly string[]): number {
  const parts: unknown[] = Array.isArray(value)
    ? value.slice(0, MOST_ELEMENTS)
    : names.map((name) => Object.getOwnPropertyDescriptor(value, name)?.value);
  return parts.some((part) => namesOf(part).length > MOST_NAMES) ? 0 : 1;
}

/** Of lists only the first elements are shown, and they need no names. */
function namesOf(value: unknown): readonly string[] {
  return typeof value !== 'object' ||
    value === null ||
    Array.isArray(value) ||
    ArrayBuffer.isView(value)
    ? []
    : Object.keys(value);
}

/** What a value is rather than what it holds: for errors that may be read by strangers. */
export function typeName(value: unknown): string {
  if (typeof value !== 'object' || value === null) {
    return `a ${typeof value}`;
  }
  const { constructor }: { constructor?: unknown } = value;
  return typeof constructor === 'function'
    ? `an instance of ${constructor.name || 'a class'}`
    : 'an object';
}
