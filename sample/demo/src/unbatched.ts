import type { ModelRunner, ServingDefinition, ServingSignature } from 'nestjs-serving';
import { InferenceSession } from 'onnxruntime-node';
import { availableParallelism } from 'node:os';
import { fileURLToPath } from 'node:url';

/** The same serving without batching: a session on the main thread, and one run per call. */
export async function unbatched(definition: ServingDefinition) {
  const session = await InferenceSession.create(await pathOf(definition), {
    // As many threads as a serving gives its partition by default.
    intraOpNumThreads: Math.max(1, availableParallelism() - 1),
  });
  const signature = signatureOf(session);

  return {
    async batchedRun(input: unknown): Promise<unknown> {
      const { batch, info } = await definition.preprocess!(input, { signature });
      const output = await session.run(batch as InferenceSession.FeedsType);
      return definition.postprocess!(output, { info, isSplit: false, metadata: undefined });
    },
  };
}

async function pathOf({ name, model }: ServingDefinition): Promise<string> {
  const file = typeof model === 'object' && 'file' in model ? (model as ModelRunner).file : model;
  if (typeof file === 'string') {
    return file;
  }
  if (file instanceof URL) {
    return fileURLToPath(file);
  }
  // A task fetches its model, and reads its tokenizer.
  const found =
    'fetch' in file && !ArrayBuffer.isView(file)
      ? await file.fetch({
          log: () => {},
          warn: () => {},
          signal: new AbortController().signal,
        })
      : undefined;
  if (typeof found !== 'string') {
    throw new TypeError(`Serving "${name}" has no model file`);
  }
  return found;
}

function tensorsOf(ports: readonly InferenceSession.ValueMetadata[]) {
  return ports.flatMap((port) => (port.isTensor ? [{ ...port, batchAxis: 0 }] : []));
}

function signatureOf({ inputMetadata, outputMetadata }: InferenceSession): ServingSignature {
  return { inputs: tensorsOf(inputMetadata), outputs: tensorsOf(outputMetadata) };
}
