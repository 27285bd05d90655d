import { MessageChannel } from 'node:worker_threads';
import type { Tensor } from 'onnxruntime-common';
import { type PartitionOptions, ServingLoadError } from '../../index.js';
import { sessionForThread, type SessionOfThread } from '../../doors/models.js';
import { messageOf } from '../../doors/text.js';
import { isFixed } from '../../doors/values.js';

/**
 * Session in the thread that imports this module.
 *
 * @param shared address of the session that the application has opened for its threads, if any
 * @throws ServingLoadError for an invalid file
 */
export async function sessionOf(
  name: string,
  model: string | Uint8Array,
  options: PartitionOptions,
  shared?: bigint,
): Promise<SessionOfThread> {
  try {
    return await sessionForThread(model, options, shared);
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
