import { node, type OnnxModel } from '../../fixtures/models/onnx-writer.js';
import { type BenchmarkModel, generated } from './model.js';
import { randomWeights } from './weights.js';

/**
 * A stack of convolutions over a 64 x 64 image: few weights, used at every pixel, so a single row
 * already keeps the core busy.
 */
export const convolution: BenchmarkModel = {
  name: 'convolutions, 3 x 64 x 64',
  path: generated('convolution', build),
  rowShape: [3, 64, 64],
};

function build(): OnnxModel {
  const same = { kernel_shape: [3, 3], pads: [1, 1, 1, 1], strides: [1, 1] };
  const half = { ...same, strides: [2, 2] };
  return {
    inputs: { image: { type: 'float32', dims: ['batch', 3, 64, 64] } },
    outputs: { features: { type: 'float32', dims: ['batch', 64, 1, 1] } },
    initializers: {
      kernels1: randomWeights([32, 3, 3, 3], 27),
      kernels2: randomWeights([64, 32, 3, 3], 288),
      kernels3: randomWeights([64, 64, 3, 3], 576),
    },
    nodes: [
      node('Conv', ['image', 'kernels1'], ['edges'], half),
      node('Relu', ['edges'], ['hidden1']),
      node('Conv', ['hidden1', 'kernels2'], ['parts'], same),
      node('Relu', ['parts'], ['hidden2']),
      node('Conv', ['hidden2', 'kernels3'], ['things'], half),
      node('Relu', ['things'], ['hidden3']),
      node('GlobalAveragePool', ['hidden3'], ['features']),
    ],
  };
}
