import { node, type OnnxModel } from '../../fixtures/models/onnx-writer.js';
import { type BenchmarkModel, generated } from './model.js';
import { randomWeights } from './weights.js';

/**
 * Three wide layers, 57 MB of weights: a single row waits for memory, a batch reads the weights
 * once for all its rows.
 */
export const mlp: BenchmarkModel = {
  name: 'mlp 768-3072-3072-768',
  path: generated('mlp', build),
  rowShape: [768],
};

function build(): OnnxModel {
  return {
    inputs: { input: { type: 'float32', dims: ['batch', 768] } },
    outputs: { output: { type: 'float32', dims: ['batch', 768] } },
    initializers: {
      weights1: randomWeights([768, 3072], 768),
      weights2: randomWeights([3072, 3072], 3072),
      weights3: randomWeights([3072, 768], 3072),
    },
    nodes: [
      node('MatMul', ['input', 'weights1'], ['sums1']),
      node('Relu', ['sums1'], ['hidden1']),
      node('MatMul', ['hidden1', 'weights2'], ['sums2']),
      node('Relu', ['sums2'], ['hidden2']),
      node('MatMul', ['hidden2', 'weights3'], ['output']),
    ],
  };
}
