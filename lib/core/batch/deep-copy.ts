import { types } from 'node:util';
import { isPlainObject, MAX_DEPTH } from './container.js';
import { copyOf, copyOfData, isTensor, type TypedData } from './tensor.js';
import { InvalidOutputError } from '../errors.js';
import { typeName } from '../format.js';
import { Batch } from './batch.js';

/**
 * Copies lists, plain objects, Maps, Sets, primitives, tensors, typed arrays, buffers and dates;
 * `leafOf` copies objects without parts. Unlike structuredClone, keeps tensors' class, and refuses
 * objects whose copy would lack something.
 *
 * @throws InvalidOutputError for functions, symbols, instances of other classes and cyclic values
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
  if (depth === MAX_DEPTH) {
    throw new InvalidOutputError(
      `The reply is nested deeper than ${MAX_DEPTH} levels, or holds itself`,
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
  if (types.isArrayBuffer(leaf) || types.isDate(leaf)) {
    return structuredClone(leaf);
  }
  throw notCopyable(typeName(leaf));
}

function notCopyable(part: string): Error {
  return new InvalidOutputError(
    `The reply holds ${part}, which cannot be copied for each of its callers; return plain data, ` +
      'such as { ...instance }',
  );
}

/** Protects an input from later changes. Returns the input itself if a part can't be copied. */
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
