import { MessageChannel } from 'node:worker_threads';
import type { InferenceSession, Tensor } from 'onnxruntime-common';
import * as runtime from 'onnxruntime-node';
import { type PartitionOptions, ServingLoadError } from '../../index.js';
import { withShortSpin } from '../../doors/models.js';
import { messageOf } from '../../doors/text.js';
import { isFixed } from '../../doors/values.js';

/**
 * A session in the thread that imports this module.
 *
 * @param name the model's, for errors
 * @throws ServingLoadError for a file that is no model
 */
export async function sessionOf(
  name: string,
  model: string | Uint8Array,
  options: PartitionOptions,
): Promise<InferenceSession> {
  try {
    return await runtime.InferenceSession.create(model as string, withShortSpin(options));
  } catch (cause) {
    throw new ServingLoadError(`Cannot load the model of ${name}: ${messageOf(cause)}`, { cause });
  }
}

/** A closed port: what is transferred to it is freed. */
const { port1: closed, port2: other } = new MessageChannel();
other.close();

/**
 * Frees the memory of tensors of numbers, which nothing refers to any more. A decoder leaves
 * megabytes behind with each token: as garbage, they would make the collector run all the time.
 */
export function free(tensors: readonly Tensor[]): void {
  const buffers = tensors
    .map(({ data }) => (data as Float32Array<ArrayBuffer>).buffer)
    .filter((buffer) => buffer.byteLength > 0 && !isFixed?.(buffer));
  closed.postMessage(null, buffers);
}
