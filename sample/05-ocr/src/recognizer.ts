import type { BatchFunctionContext, Tensor } from 'nestjs-serving';
import { InferenceSession } from 'onnxruntime-node';
import { readFile } from 'node:fs/promises';
import { join } from 'node:path';
import { type Reading, readRows } from './ctc.js';

interface Model {
  readonly session: InferenceSession;
  readonly characters: readonly string[];
}

let model: Promise<Model> | undefined;

/**
 * Runs in threads of its own. It is called there for every key, but all keys of a thread share one
 * session and its weights.
 */
export default async function createRecognizer({ options }: BatchFunctionContext) {
  const { session, characters } = await (model ??= load(String(options['modelFolder'])));

  return async ({ x }: { x: Tensor }): Promise<Reading[]> => {
    const outputs = await session.run({ x });
    // Read in this thread: the output has 26 kB per 8 pixels of width, and the caller needs one
    // character of them.
    return readRows(outputs[session.outputNames[0]!] as Tensor, characters);
  };
}

async function load(folder: string): Promise<Model> {
  // One native thread: the other partitions use the other cores.
  const session = await InferenceSession.create(join(folder, 'recognition.onnx'), {
    intraOpNumThreads: 1,
  });
  const lines = await readFile(join(folder, 'characters.txt'), 'utf8');
  // The blank of CTC comes first, and the space last; the file has neither.
  return { session, characters: ['', ...lines.trimEnd().split(/\r?\n/), ' '] };
}
