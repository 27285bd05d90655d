import { Batch } from '../batch/batch.js';
import { ownCopy, ownLeaf } from './own-copy.js';

/**
 * A copy of a caller's input that shares no memory with it, so that nothing that the caller does later changes what is asked.
 *
 * An input with a part that cannot be copied, such as an instance of a class, is given back as it is.
 */
export function ownInput(input: unknown): unknown {
  try {
    return ownCopy(input, (leaf) => (leaf instanceof Batch ? copyOf(leaf) : ownLeaf(leaf)));
  } catch {
    return input;
  }
}

function copyOf(batch: Batch): Batch {
  if (!batch.isPlain) {
    return batch.copy();
  }
  const values = batch.release() as readonly unknown[];
  return Batch.ofValues(values.map(ownInput)).withKey(batch.key);
}
