import type { ServingDefinition } from 'nestjs-serving';
import { InferenceSession } from 'onnxruntime-node';
import { availableParallelism } from 'node:os';
import { fileURLToPath } from 'node:url';

/** The same serving without batching: a session on the main thread, and one run per call. */
export async function unbatched(definition: ServingDefinition) {
  const model = 'model' in definition ? definition.model : undefined;
  if (typeof model !== 'string' && !(model instanceof URL)) {
    throw new TypeError(`Serving "${definition.name}" has no model file`);
  }
  const path = model instanceof URL ? fileURLToPath(model) : model;
  // As many threads as a serving gives its partition by default.
  const session = await InferenceSession.create(path, {
    intraOpNumThreads: Math.max(1, availableParallelism() - 1),
  });

  return {
    async batchedRun(input: unknown): Promise<unknown> {
      const { batch, info } = await definition.preprocess!(input);
      const output = await session.run(batch as InferenceSession.FeedsType);
      return definition.postprocess!(output, { info, isSplit: false, metadata: undefined });
    },
  };
}
