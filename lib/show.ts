import { inspect, type InspectOptions } from 'node:util';

const oneLine: InspectOptions = { depth: 1, maxArrayLength: 8, maxStringLength: 100, breakLength: Infinity, compact: true };

/** A value as error messages show it. */
export function show(value: unknown): string {
  if (value instanceof Promise) {
    return 'a promise';
  }
  return typeof value === 'string' ? `"${value}"` : inspect(value, oneLine);
}
