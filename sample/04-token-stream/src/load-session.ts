import { readFile } from 'node:fs/promises';
import { availableParallelism } from 'node:os';
import { join } from 'node:path';
import { InferenceSession } from 'onnxruntime-node';
import { withFloatActivations } from './float-activations.js';

/**
 * A session of the model in a folder. It uses all cores but one, which is left to the application.
 */
export async function loadSession(folder: string): Promise<InferenceSession> {
  const model = withFloatActivations(await readFile(join(folder, 'model.onnx')));
  return InferenceSession.create(model, {
    intraOpNumThreads: Math.max(1, availableParallelism() - 1),
  });
}
