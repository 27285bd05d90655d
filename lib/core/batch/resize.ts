import type { Tensor } from 'onnxruntime-common';
import { InvalidBatchError } from '../errors.js';
import { formatValue } from '../format.js';
import { copyRows, zeroTensor } from './tensor.js';

/**
 * An element as the data of a tensor stores it: 64-bit integers as bigint, booleans as 0 or 1, half
 * floats possibly as their 16 bits.
 */
export type Fill = number | bigint | string;

/** The tensor with another length on the axis: truncated, or padded with zeros or empty strings. */
export function resize(tensor: Tensor, axis: number, length: number): Tensor {
  const present = tensor.dims[axis]!;
  if (present === length) {
    return tensor;
  }
  const target = zeroTensor(tensor.type, tensor.dims.with(axis, length));
  copyRows(target, 0, tensor, 0, Math.min(length, present), axis);
  return target;
}

/**
 * A tensor of this element, by default of zeros or empty strings.
 *
 * @throws InvalidBatchError when the type has no such element
 */
export function filledTensor(
  type: Tensor.Type,
  dims: readonly number[],
  fill?: Fill,
  path = '',
): Tensor {
  const target = zeroTensor(type, dims);
  if (fill !== undefined && target.size > 0 && !filled(target, fill)) {
    throw new InvalidBatchError(
      `"${path}" cannot be filled with ${formatValue(fill)}, which is no element of a ` +
        `${type} tensor`,
    );
  }
  return target;
}

/** False when the elements cannot hold the value: integer arrays would truncate it silently. */
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
