import { InvalidOutputError } from '../errors.js';

/** A thread writes and reads deeper values than the main thread, which has less stack and would get nothing at all. */
const DEEPEST = 500;

/** The results, with an error in place of each that could not be read on the other side. */
export function readableRows(output: unknown): unknown {
  return Array.isArray(output) && output.some((row) => isDeep(row))
    ? output.map((row) => (isDeep(row) ? tooDeep() : row))
    : output;
}

function tooDeep(): Error {
  return new InvalidOutputError(
    `The result of a row is nested more than ${DEEPEST} levels deep, and could not be read where it is to go`,
  );
}

/** Each object counts where it is first met, as it is written. */
function isDeep(value: unknown, levels = DEEPEST, met = new Set<unknown>()): boolean {
  if (typeof value !== 'object' || value === null || ArrayBuffer.isView(value) || met.has(value)) {
    return false;
  }
  if (levels === 0) {
    return true;
  }
  met.add(value);
  for (const part of value instanceof Map || value instanceof Set ? [...value].flat() : Object.values(value)) {
    if (typeof part === 'object' && isDeep(part, levels - 1, met)) {
      return true;
    }
  }
  return false;
}
