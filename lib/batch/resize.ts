import type { Tensor } from 'onnxruntime-common';
import { InvalidBatchError } from '../errors.js';
import { formatValue } from '../format.js';
import type { Leaf } from './container.js';
import { copyRows, zerosLike } from './tensor.js';

/**
 * An element as the data of a tensor holds it: of 64 bits a bigint, a truth value as 0 or 1, a half
 * float maybe as its bits.
 */
export type Fill = number | bigint | string;

/**
 * The leaf's tensor with another length on the axis: cut at its end, or filled up there, with zeros
 * or empty strings by default.
 */
export function resize({ path, tensor }: Leaf, axis: number, length: number, fill?: Fill): Tensor {
  const present = tensor.dims[axis]!;
  if (present === length) {
    return tensor;
  }
  const target = zerosLike(tensor, tensor.dims.with(axis, length));
  if (fill !== undefined && target.size > 0 && !filled(target, fill)) {
    throw new InvalidBatchError(
      `"${path}" cannot be filled with ${formatValue(fill)}: it is no element of a ` +
        `${tensor.type} tensor`,
    );
  }
  copyRows(target, 0, tensor, 0, Math.min(length, present), axis);
  return target;
}

/**
 * False when the elements cannot hold the value: arrays of integers take any number, and keep what
 * is left of it.
 */
function filled(target: Tensor, fill: Fill): boolean {
  const data = target.data as { [index: number]: unknown; fill(element: unknown): unknown };
  const element = typeof data[0] === 'bigint' && Number.isInteger(fill) ? BigInt(fill) : fill;
  if (typeof element === typeof data[0]) {
    data.fill(element);
  }
  return data[0] === element || (isFraction(data[0]) && isFraction(element));
}

function isFraction(value: unknown): boolean {
  return typeof value === 'number' && !Number.isInteger(value);
}
