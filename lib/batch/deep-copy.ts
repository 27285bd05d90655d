import { types } from 'node:util';
import { isPlainObject } from './container.js';
import { copyOf, copyOfData, isTensor, type TypedData } from './tensor.js';
import { InvalidOutputError } from '../errors.js';
import { typeName } from '../format.js';
import { DEEPEST } from './content-hash.js';
import { Batch } from './batch.js';

/**
 * A copy of data that shares nothing with it: lists, plain objects, Map and Set, and in these
 * primitives, tensors, typed arrays, buffers and dates; or what `leafOf` makes of the objects that
 * are none of the first four.
 *
 * @throws InvalidOutputError for what may have a part that no copy would have: functions, symbols,
 * instances of other classes; and for what holds itself
 */
export function deepCopy(
  value: unknown,
  leafOf: (leaf: object) => unknown = copyLeaf,
  depth = 0,
): unknown {
  if (typeof value === 'function' || typeof value === 'symbol') {
    throw notCopyable(typeName(value));
  }
  if (typeof value !== 'object' || value === null) {
    return value;
  }
  if (depth === DEEPEST) {
    throw new InvalidOutputError(
      `The reply is nested deeper than ${DEEPEST} levels, or holds itself`,
    );
  }
  const copied = (part: unknown): unknown => deepCopy(part, leafOf, depth + 1);
  if (Array.isArray(value)) {
    return value.map(copied);
  }
  if (isPlainObject(value)) {
    if (Object.getOwnPropertySymbols(value).length > 0) {
      throw notCopyable('an entry named by a symbol');
    }
    return Object.fromEntries(Object.entries(value).map(([name, part]) => [name, copied(part)]));
  }
  if (types.isMap(value)) {
    return new Map([...value].map(([key, part]) => [copied(key), copied(part)]));
  }
  return types.isSet(value) ? new Set([...value].map(copied)) : leafOf(value);
}

/** A copy of what has no parts of its own. */
export function copyLeaf(leaf: object): unknown {
  if (isTensor(leaf)) {
    return copyOf(leaf);
  }
  if (Buffer.isBuffer(leaf)) {
    return Buffer.from(leaf);
  }
  if (types.isDataView(leaf)) {
    return new DataView(leaf.buffer.slice(leaf.byteOffset, leaf.byteOffset + leaf.byteLength));
  }
  if (ArrayBuffer.isView(leaf)) {
    return copyOfData(leaf as TypedData);
  }
  if (types.isArrayBuffer(leaf)) {
    return leaf.slice(0);
  }
  if (types.isDate(leaf)) {
    return new Date(leaf);
  }
  throw notCopyable(typeName(leaf));
}

function notCopyable(part: string): Error {
  return new InvalidOutputError(
    `The reply holds ${part}, of which there can be no copy for each of its callers; return ` +
      'plain data, such as { ...instance }',
  );
}

/**
 * A copy of a caller's input that shares no memory with it, so that nothing that the caller does
 * later changes what is asked.
 *
 * An input with a part that cannot be copied, such as an instance of a class, is given back as it
 * is.
 */
export function copyInput(input: unknown): unknown {
  try {
    return deepCopy(input, (leaf) => (leaf instanceof Batch ? copyOfBatch(leaf) : copyLeaf(leaf)));
  } catch {
    return input;
  }
}

function copyOfBatch(batch: Batch): Batch {
  if (!batch.isPlain) {
    return batch.copy();
  }
  const values = batch.release() as readonly unknown[];
  return Batch.ofValues(values.map(copyInput)).withKey(batch.key);
}
