import { deserialize, serialize } from 'node:v8';
import { types } from 'node:util';
import { Tensor } from 'onnxruntime-common';
import { isTensor } from '../batch/tensor.js';
import { deepCopy, copyLeaf } from '../batch/deep-copy.js';

/** A tensor as V8 writes it. */
type Parts = Pick<Tensor, 'type' | 'data' | 'dims'>;

/**
 * A reply as a text, which every store gives back as it was, in memory or elsewhere. JSON would
 * turn typed arrays, tensors, dates and NaN into something else.
 *
 * @throws InvalidOutputError for what cannot be copied
 */
export function encodeReply(reply: unknown): string {
  const tensors: Parts[] = [];
  const packed = deepCopy(reply, (leaf) => {
    if (!isTensor(leaf)) {
      return copyLeaf(leaf);
    }
    const { type, data, dims } = leaf;
    tensors.push({ type, data, dims });
    // Numbers in boxes are copied, and no reply has any: they stand for the tensors.
    return Object(tensors.length - 1);
  });
  return serialize({ packed, tensors }).toString('base64');
}

/** The reply of a text, in storage of its own. */
export function decodeReply(text: string): unknown {
  const { packed, tensors } = deserialize(Buffer.from(text, 'base64')) as {
    packed: unknown;
    tensors: readonly Parts[];
  };
  return deepCopy(packed, (leaf) => {
    if (!types.isNumberObject(leaf)) {
      // V8 has read it as a view of the whole text.
      return copyLeaf(leaf);
    }
    const { type, data, dims } = tensors[Number(leaf)]!;
    return new Tensor(type, deepCopy(data) as Tensor['data'], dims);
  });
}
