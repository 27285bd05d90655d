import type { InferenceSession } from 'onnxruntime-common';
import * as runtime from 'onnxruntime-node';
import { ServingLoadError } from '../../index.js';
import { messageOf } from '../../internal.js';

/**
 * A session in the thread that imports this module.
 *
 * @param name the model's, for errors
 * @throws ServingLoadError for a file that is no model
 */
export async function sessionOf(
  name: string,
  model: string | Uint8Array,
  options: InferenceSession.SessionOptions,
): Promise<InferenceSession> {
  try {
    return await runtime.InferenceSession.create(model as string, options);
  } catch (cause) {
    throw new ServingLoadError(`Cannot load the model of ${name}: ${messageOf(cause)}`, { cause });
  }
}
