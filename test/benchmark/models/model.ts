import { existsSync, mkdirSync, writeFileSync } from 'node:fs';
import { join } from 'node:path';
import type { InferenceSession } from 'onnxruntime-node';
import { type OnnxModel, onnxModel } from '../../fixtures/models/onnx-writer.js';

/**
 * A model on disk, with one input and one output, and all that the contenders must agree on to be
 * compared.
 */
export interface BenchmarkModel {
  readonly name: string;
  readonly path: string;
  /** Of the input, without the batch axis. */
  readonly rowShape: readonly number[];
  /** The CPU by default. */
  readonly executionProviders?: readonly string[];
}

export const batchSize = 32;

/** One thread a session, on every side: more would measure how the machine shares out its cores. */
export const session = {
  intraOpNumThreads: 1,
  interOpNumThreads: 1,
} satisfies InferenceSession.SessionOptions;

/** The options of a session of the model. */
export function sessionOf({
  executionProviders = ['cpu'],
}: BenchmarkModel): InferenceSession.SessionOptions {
  return { ...session, executionProviders };
}

/** The path of a model that is written at its first use. */
export function generated(name: string, build: () => OnnxModel): string {
  const folder = join('bench-results', 'models');
  const path = join(folder, `${name}.onnx`);
  if (!existsSync(path)) {
    mkdirSync(folder, { recursive: true });
    writeFileSync(path, onnxModel(build()));
  }
  return path;
}
