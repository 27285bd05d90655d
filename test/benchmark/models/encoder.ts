import {
  node,
  type OnnxModel,
  type OnnxNode,
  type OnnxTensor,
} from '../../fixtures/models/onnx-writer.js';
import { type BenchmarkModel, generated } from './model.js';
import { randomWeights } from './weights.js';

const tokens = 8;
export const width = 384;
export const blocks = 6;

/**
 * A text encoder of the shape and cost of all-MiniLM-L6-v2 in fp32, at eight tokens a row: six
 * transformer blocks, with one attention head in place of twelve, which costs the same, and without
 * the embedding of token ids, which costs nothing.
 */
export const encoder: BenchmarkModel = {
  name: 'encoder 6 x 384, 8 tokens',
  path: generated('encoder', build),
  rowShape: [tokens, width],
};

function build(): OnnxModel {
  const layers = Array.from({ length: blocks }, (_, index) =>
    block(`${index}`, `hidden${index}`, `hidden${index + 1}`),
  );
  return {
    inputs: { hidden0: { type: 'float32', dims: ['batch', 'tokens', width] } },
    outputs: { [`hidden${blocks}`]: { type: 'float32', dims: ['batch', 'tokens', width] } },
    initializers: Object.assign(constants(), ...layers.map((layer) => layer.weights)),
    nodes: layers.flatMap((layer) => layer.nodes),
  };
}

/** A transformer block. `bias` is added to the scores of its attention, to mask tokens. */
export function block(
  id: string,
  input: string,
  output: string,
  bias?: string,
): { weights: Record<string, OnnxTensor>; nodes: OnnxNode[] } {
  const own = (name: string): string => `${name}${id}`;
  return {
    weights: {
      [own('queryWeights')]: randomWeights([width, width], width),
      [own('keyWeights')]: randomWeights([width, width], width),
      [own('valueWeights')]: randomWeights([width, width], width),
      [own('mixWeights')]: randomWeights([width, width], width),
      [own('wideWeights')]: randomWeights([width, 4 * width], width),
      [own('narrowWeights')]: randomWeights([4 * width, width], 4 * width),
    },
    nodes: [
      node('MatMul', [input, own('queryWeights')], [own('query')]),
      node('MatMul', [input, own('keyWeights')], [own('key')]),
      node('MatMul', [input, own('valueWeights')], [own('value')]),
      node('Transpose', [own('key')], [own('keyTransposed')], { perm: [0, 2, 1] }),
      node('MatMul', [own('query'), own('keyTransposed')], [own('scores')]),
      ...(bias === undefined ? [] : [node('Add', [own('scores'), bias], [own('masked')])]),
      node('Softmax', [own(bias === undefined ? 'scores' : 'masked')], [own('attention')], {
        axis: -1,
      }),
      node('MatMul', [own('attention'), own('value')], [own('attended')]),
      node('MatMul', [own('attended'), own('mixWeights')], [own('mixed')]),
      node('Add', [input, own('mixed')], [own('sum')]),
      node('LayerNormalization', [own('sum'), 'ones', 'zeros'], [own('middle')]),
      node('MatMul', [own('middle'), own('wideWeights')], [own('wide')]),
      node('Relu', [own('wide')], [own('active')]),
      node('MatMul', [own('active'), own('narrowWeights')], [own('narrow')]),
      node('Add', [own('middle'), own('narrow')], [own('total')]),
      node('LayerNormalization', [own('total'), 'ones', 'zeros'], [output]),
    ],
  };
}

/** What blocks share; a function, since models are made while this module loads. */
export function constants(): Record<string, OnnxTensor> {
  return {
    ones: filled(1),
    zeros: filled(0),
  };
}

function filled(value: number): OnnxTensor {
  return { type: 'float32', dims: [width], data: new Float32Array(width).fill(value) };
}
