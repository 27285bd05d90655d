import { InvalidServingError } from '../errors.js';
import type { ModelSignature } from '../partitions/onnx/model-signature.js';
import type { ResolvedServing } from './resolved-serving.js';

/** @throws InvalidServingError for batches larger than the server of the model takes */
export function checkMostRows(
  { name, keys }: Pick<ResolvedServing, 'name' | 'keys'>,
  { mostRows = Infinity }: Pick<ModelSignature, 'mostRows'>,
): void {
  for (const [key, { runSize, allowedSizes = [] }] of keys) {
    // Without a size of its own, a serving takes that of the server.
    const given = runSize === Infinity ? [] : [runSize];
    const largest = Math.max(0, ...given, ...allowedSizes);
    if (largest > mostRows) {
      throw new InvalidServingError(
        `Serving "${name}", key "${key}": batches of ${largest} rows are more than the ` +
          `max_batch_size of the model on its server, ${mostRows}; lower batchSize or allowedSizes`,
      );
    }
  }
}
