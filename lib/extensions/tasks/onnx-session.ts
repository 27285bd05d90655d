import { MessageChannel } from 'node:worker_threads';
import type { InferenceSession, Tensor } from 'onnxruntime-common';
import * as runtime from 'onnxruntime-node';
import { type PartitionOptions, ServingLoadError } from '../../index.js';
import { withShortSpin } from '../../doors/models.js';
import { messageOf } from '../../doors/text.js';
import { isFixed } from '../../doors/values.js';

/**
 * Session in the thread that imports this module.
 *
 * @throws ServingLoadError for an invalid file
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

/** Closed port, which frees what is transferred to it. */
const { port1: closed, port2: other } = new MessageChannel();
other.close();

/**
 * Frees tensors that nothing refers to any more. A decoder leaves megabytes with each token, which
 * would keep the garbage collector running.
 */
export function free(tensors: readonly Tensor[]): void {
  const buffers = tensors
    .map(({ data }) => (data as Float32Array<ArrayBuffer>).buffer)
    .filter((buffer) => buffer.byteLength > 0 && !isFixed?.(buffer));
  closed.postMessage(null, buffers);
}
