import { inspect, type InspectOptions } from 'node:util';

const oneLine: InspectOptions = { depth: 1, maxArrayLength: 8, maxStringLength: 100, breakLength: Infinity, compact: true };

/** A value as error messages show it. */
export function show(value: unknown): string {
  if (value instanceof Promise) {
    return 'a promise';
  }
  return typeof value === 'string' ? `"${value}"` : inspect(value, oneLine);
}

/** What a value is rather than what it holds: for errors that may be read by strangers. */
export function kindOf(value: unknown): string {
  if (typeof value !== 'object' || value === null) {
    return `a ${typeof value}`;
  }
  const { constructor }: { constructor?: unknown } = value;
  return typeof constructor === 'function' ? `an instance of ${constructor.name || 'a class'}` : 'an object';
}
