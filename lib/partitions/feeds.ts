import { Tensor } from 'onnxruntime-common';
import { type Container, leavesOf } from '../batch/container.js';
import type { ModelPort } from './model-signature.js';

/** The rows by input name; a bare tensor is the one input of a model that has one. */
export function feedsOf(rows: Container, inputs: readonly ModelPort[]): Record<string, Tensor> {
  return Object.fromEntries(leavesOf(rows).map(({ path, tensor }) => [path === '' ? inputs[0]!.name : path, tensor]));
}

/**
 * The tensor as onnxruntime-node reads it: half floats by their bits. Of a Float16Array, in which Node keeps them from 24 on, it
 * reads nothing.
 */
export function feedOf(tensor: Tensor): Tensor {
  if (tensor.type !== 'float16') {
    return tensor;
  }
  const { buffer, byteOffset, length } = tensor.data as Uint16Array;
  const bits = new Uint16Array(buffer, byteOffset, length);
  // The constructor makes a Float16Array of them.
  return Object.defineProperty(new Tensor('float16', bits, tensor.dims), 'data', { value: bits });
}
