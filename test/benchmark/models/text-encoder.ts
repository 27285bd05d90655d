import { elementTypes, node, type OnnxModel } from '../../fixtures/models/onnx-writer.js';
import { block, blocks, constants, width } from './encoder.js';
import { generated } from './model.js';
import { randomWeights } from './weights.js';

const vocabulary = 1000;

/**
 * The encoder of the other figures, of token ids: with their embedding, and a mask that keeps
 * padding out of the attention. An embedding of 1,000 ids stands for that of 30,522, which costs the
 * same.
 */
export const textEncoder = generated('text-encoder', build);

function build(): OnnxModel {
  const layers = Array.from({ length: blocks }, (_, index) => {
    const output = index === blocks - 1 ? 'last_hidden_state' : `hidden${index + 1}`;
    return block(`${index}`, `hidden${index}`, output, 'bias');
  });
  const ids = { type: 'int64', dims: ['batch', 'tokens'] } as const;
  return {
    inputs: { input_ids: ids, attention_mask: ids },
    outputs: { last_hidden_state: { type: 'float32', dims: ['batch', 'tokens', width] } },
    initializers: Object.assign(
      {
        embedding: randomWeights([vocabulary, width], width),
        axis: { type: 'int64', dims: [1], data: BigInt64Array.of(1n) },
        one: { type: 'float32', dims: [1], data: Float32Array.of(1) },
        hidden: { type: 'float32', dims: [1], data: Float32Array.of(-10_000) },
      } as const,
      constants(),
      ...layers.map((layer) => layer.weights),
    ),
    nodes: [
      node('Gather', ['embedding', 'input_ids'], ['hidden0']),
      node('Cast', ['attention_mask'], ['mask'], { to: elementTypes.float32 }),
      node('Sub', ['one', 'mask'], ['padding']),
      node('Mul', ['padding', 'hidden'], ['biases']),
      // For each row and token the same biases.
      node('Unsqueeze', ['biases', 'axis'], ['bias']),
      ...layers.flatMap((layer) => layer.nodes),
    ],
  };
}
