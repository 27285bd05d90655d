import type { TypedTensor } from 'onnxruntime-common';
import { Tensor } from 'nestjs-serving';
import { randomFloats, sizeOf } from './weights.js';

/** Uniform in [-1, 1), and the same at every run. */
export function randomRows(rows: number, rowShape: readonly number[]): TypedTensor<'float32'> {
  const dims = [rows, ...rowShape];
  return new Tensor('float32', randomFloats(sizeOf(dims), 1), dims);
}
