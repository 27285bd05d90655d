import { type TypedTensor } from 'onnxruntime-common';
import { Tensor } from 'nestjs-serving';

export function randomRows(rows: number, rowShape: readonly number[]): TypedTensor<'float32'> {
  return randomTensor([rows, ...rowShape], 1);
}

/** Weights that keep the scale of what passes through a layer of `inputs` inputs. */
export function randomWeights(dims: readonly number[], inputs: number): TypedTensor<'float32'> {
  return randomTensor(dims, Math.sqrt(3 / inputs));
}

/**
 * Uniform in [-scale, scale), and the same at every run: a linear congruential generator (Numerical
 * Recipes).
 */
function randomTensor(dims: readonly number[], scale: number): TypedTensor<'float32'> {
  const data = new Float32Array(dims.reduce((size, dim) => size * dim, 1));
  let state = data.length;
  for (let index = 0; index < data.length; index++) {
    state = (Math.imul(state, 1664525) + 1013904223) >>> 0;
    data[index] = (state / 2 ** 31 - 1) * scale;
  }
  return new Tensor('float32', data, dims);
}
