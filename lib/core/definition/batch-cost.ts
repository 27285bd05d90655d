import type { Budget } from '../batching/budget.js';
import { InvalidServingError } from '../errors.js';
import { aFunction, flag, groupOf, type Rule, whole } from './option-rules.js';
import type { ModelSignature } from '../partitions/onnx/model-signature.js';
import type { KeyOptions, ResolvedServing } from './resolved-serving.js';

/** Which rows share a batch, by their cost. */
export interface SimilarRowsOptions {
  /**
   * The number of batches that may pass a row in favour of younger rows, of its tenant and priority,
   * whose cost is closer to that of the others in the batch.
   */
  readonly overtaking: number;
}

/** The limit of a batch's cost. */
export interface BatchCostOptions {
  /**
   * The cost of a row: a finite number above 0, such as the number of its tokens. Called once for
   * each row of a call, with the row as a batch of it alone: a plain value as it is, tensors with
   * one row. An error, or another number, fails that call alone.
   */
  of(row: unknown): number;
  /** The largest cost of a batch. A row that costs more is refused with a RequestTooLargeError. */
  readonly most: number;
  /**
   * Whether a batch costs the number of its rows times the largest of their costs, as rows that are
   * padded to the longest of them do. Otherwise it costs the sum.
   *
   * @default false
   */
  readonly padded?: boolean;
  /**
   * Rows of similar cost share a batch, so that less is padded; needs `padded`. The row that is next
   * in the order of the queue is always in the batch.
   *
   * @default rows in the order of the queue
   * @experimental
   */
  readonly similar?: SimilarRowsOptions;
}

/** The options of `batchCost`, with their defaults. */
export interface ResolvedBatchCost extends Budget {
  readonly of: (row: unknown) => unknown;
}

export const batchCost: Rule = groupOf({
  of: { ...aFunction, isRequired: true },
  most: {
    check: (value) => typeof value === 'number' && value > 0 && value < Infinity,
    allowed: 'a number above 0',
    isRequired: true,
  },
  padded: flag,
  similar: groupOf({ overtaking: { ...whole(1, 1_000_000), isRequired: true } }),
});

/** @throws InvalidServingError for options that contradict each other */
export function batchCostOf(
  owner: string,
  options: BatchCostOptions | undefined,
  keys: Iterable<KeyOptions>,
): ResolvedBatchCost | undefined {
  if (!options) {
    return undefined;
  }
  const { most, padded = false, similar } = options;
  if (similar && !padded) {
    throw new InvalidServingError(
      `${owner}: batchCost.similar chooses rows that need little padding, and needs ` +
        'batchCost.padded: true',
    );
  }
  for (const { allowedSizes } of keys) {
    if (allowedSizes) {
      throw new InvalidServingError(
        `${owner}: allowedSizes ${allowedSizes.join(', ')} adds rows to a batch, which ` +
          'batchCost does not count; leave one of them out',
      );
    }
  }
  return { of: (row) => options.of(row), most, padded, overtaking: similar?.overtaking ?? 0 };
}

/** @throws InvalidServingError for a model whose runs all have as many rows, and so one cost */
export function checkFixedBatch(
  { name, batchCost: cost }: Pick<ResolvedServing, 'name' | 'batchCost'>,
  { fixedBatch }: Pick<ModelSignature, 'fixedBatch'>,
): void {
  if (cost && fixedBatch !== undefined) {
    throw new InvalidServingError(
      `Serving "${name}" has batchCost, and its model runs ${fixedBatch} rows at a time whatever ` +
        'they cost; leave batchCost out, or export the model with a dynamic batch axis',
    );
  }
}

/** @throws InvalidServingError for batches larger than the model's server takes */
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
