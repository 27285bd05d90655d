import type { BenchmarkModel } from './model.js';

/**
 * The digits sample's classifier, so small that a row takes microseconds: here the way to the model
 * is the cost.
 */
export const digits: BenchmarkModel = {
  name: 'digits 784-128-10',
  path: 'sample/01-digits/model/digits.onnx',
  rowShape: [784],
};
