import type { ModelRunner, ServingDefinition, ServingSignature } from 'nestjs-serving';
import { InferenceSession } from 'onnxruntime-node';
import { availableParallelism } from 'node:os';
import { fileURLToPath } from 'node:url';

/** The same serving without batching: a session on the main thread, and one run per call. */
export async function unbatched(definition: ServingDefinition) {
  const { path, facts } = await modelOf(definition);
  const session = await InferenceSession.create(path, {
    // As many threads as a serving gives its partition by default.
    intraOpNumThreads: Math.max(1, availableParallelism() - 1),
  });
  const signature = signatureOf(session);
  const { signal } = new AbortController();

  return {
    async batchedRun(input: unknown): Promise<unknown> {
      const { batch, info } = await definition.preprocess!(input, { signature, facts, signal });
      const output = await session.run(batch as InferenceSession.FeedsType);
      const context = { info, facts, isSplit: false, metadata: undefined } as const;
      return definition.postprocess!(output, context);
    },
  };
}

interface Model {
  readonly path: string;
  /** What a task reads with its model, such as its tokenizer. */
  readonly facts?: unknown;
}

async function modelOf({ name, model }: ServingDefinition): Promise<Model> {
  const file = typeof model === 'object' && 'file' in model ? (model as ModelRunner).file : model;
  if (typeof file === 'string') {
    return { path: file };
  }
  if (file instanceof URL) {
    return { path: fileURLToPath(file) };
  }
  const found =
    'fetch' in file && !ArrayBuffer.isView(file)
      ? await file.fetch({
          log: () => {},
          warn: () => {},
          signal: new AbortController().signal,
        })
      : undefined;
  if (typeof found === 'object' && 'facts' in found && typeof found.file === 'string') {
    return { path: found.file, facts: found.facts };
  }
  throw new TypeError(`Serving "${name}" has no model file`);
}

function tensorsOf(ports: readonly InferenceSession.ValueMetadata[]) {
  return ports.flatMap((port) => (port.isTensor ? [{ ...port, batchAxis: 0 }] : []));
}

function signatureOf({ inputMetadata, outputMetadata }: InferenceSession): ServingSignature {
  return { inputs: tensorsOf(inputMetadata), outputs: tensorsOf(outputMetadata) };
}
