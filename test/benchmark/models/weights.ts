import type { OnnxTensor } from '../../fixtures/models/onnx-writer.js';

/** Weights that keep the scale of what passes through a layer of `inputs` inputs. */
export function randomWeights(dims: readonly number[], inputs: number): OnnxTensor {
  return { type: 'float32', dims, data: randomFloats(sizeOf(dims), Math.sqrt(3 / inputs)) };
}

/**
 * Uniform in [-scale, scale), and the same at every run: a linear congruential generator (Numerical
 * Recipes).
 */
export function randomFloats(length: number, scale: number): Float32Array<ArrayBuffer> {
  const data = new Float32Array(length);
  let state = length;
  for (let index = 0; index < length; index++) {
    state = (Math.imul(state, 1664525) + 1013904223) >>> 0;
    data[index] = (state / 2 ** 31 - 1) * scale;
  }
  return data;
}

export function sizeOf(dims: readonly number[]): number {
  return dims.reduce((size, dim) => size * dim, 1);
}
