import { deserialize, serialize } from 'node:v8';
import { types } from 'node:util';
import { Tensor } from 'onnxruntime-common';
import { isTensor } from '../batch/tensor.js';
import { deepCopy, copyLeaf } from '../batch/deep-copy.js';

/** The parts of a tensor, whose class V8 does not keep. */
type Parts = Pick<Tensor, 'type' | 'data' | 'dims'>;

/**
 * A reply as text, for any store. JSON would not keep typed arrays, tensors, dates and NaN.
 *
 * @throws InvalidOutputError for a reply that cannot be copied
 */
export function encodeReply(reply: unknown): string {
  const tensors: Parts[] = [];
  const packed = deepCopy(reply, (leaf) => {
    if (!isTensor(leaf)) {
      return copyLeaf(leaf);
    }
    const { type, data, dims } = leaf;
    tensors.push({ type, data, dims });
    // A Number object marks the place of a tensor: V8 keeps it, and no reply holds one.
    return Object(tensors.length - 1);
  });
  return serialize({ packed, tensors }).toString('base64');
}

/** The encoded reply, in storage of its own. */
export function decodeReply(text: string): unknown {
  const { packed, tensors } = deserialize(Buffer.from(text, 'base64')) as {
    packed: unknown;
    tensors: readonly Parts[];
  };
  return deepCopy(packed, (leaf) => {
    if (!types.isNumberObject(leaf)) {
      // V8 returns views of the whole text.
      return copyLeaf(leaf);
    }
    const { type, data, dims } = tensors[Number(leaf)]!;
    return new Tensor(type, deepCopy(data) as Tensor['data'], dims);
  });
}
