import { countOfRows } from '../format.js';
import type { Budget } from '../batching/fill.js';
import { InvalidServingError } from '../errors.js';
import {
  aFunction,
  flag,
  groupOf,
  milliseconds,
  type Rule,
  type Rules,
  whole,
} from './option-rules.js';
import type { ModelSignature } from '../partitions/model/model-signature.js';
import type { ResolvedServing } from './resolved-serving.js';

/** Which rows share a batch, by their cost. */
export interface SimilarRowsOptions {
  /**
   * The number of batches that may pass a row in favour of younger rows, of its tenant and
   * priority, whose cost is closer to the cost of others in the batch.
   */
  readonly overtaking: number;
}

/** Limits a batch's cost. */
export interface BatchCostOptions {
  /**
   * The cost of a row: a finite number above 0, such as its tokens. Called once for
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
   * Rows of similar cost share a batch, so that less is padded; needs `padded`. The row that is
   * next in the order of the queue is always in the batch.
   *
   * @default rows in the order of the queue
   * @experimental
   */
  readonly similar?: SimilarRowsOptions;
}

/** A batch's size, by more than its rows. */
export interface BatchSizeOptions {
  /**
   * The largest number of rows in a batch.
   *
   * @default 32
   */
  readonly rows?: number | undefined;
  /**
   * The limit of a batch's cost.
   *
   * @default no limit
   */
  readonly cost?: BatchCostOptions | undefined;
  /**
   * Milliseconds until 99 of 100 calls are to be answered, from the time when their rows are
   * queued. The size of batches then follows from their measured run times and from the load,
   * within the other limits, and a call that would be late fails immediately with an
   * OverloadedError. Leaves no place for `batchTimeout`.
   *
   * @default no target
   * @experimental
   */
  readonly latencyTarget?: number | undefined;
}

/** Allowed sizes with a latency target. */
export interface AllowedSizesOptions {
  /** The allowed sizes, in ascending order. */
  readonly rows: readonly number[];
  /** The rows that pad a batch have no cost. */
  readonly cost?: undefined;
  /** See {@link BatchSizeOptions}. */
  readonly latencyTarget?: number | undefined;
}

/** Most rows, the allowed numbers of rows, or limits of more than rows. */
export type BatchSize = number | readonly number[] | BatchSizeOptions | AllowedSizesOptions;

export interface ResolvedBatchCost extends Budget {
  readonly of: (row: unknown) => unknown;
}

export interface ResolvedBatchSize {
  /** The given number, or the last of `sizes`. */
  readonly rows: number | undefined;
  readonly sizes: readonly number[] | undefined;
  readonly cost: ResolvedBatchCost | undefined;
  readonly latencyTarget: number | undefined;
}

const aSize = whole(1, 2 ** 20);
const sizes: Rule = {
  check: (value) =>
    Array.isArray(value) &&
    value.length > 0 &&
    value.every((size, i) => whole((value[i - 1] ?? 0) + 1, 2 ** 20).check(size)),
  allowed: 'a list of whole numbers from 1 on, each larger than the one before',
};

const rowsRule: Rule = {
  check: (value) => aSize.check(value) || sizes.check(value),
  allowed: `${aSize.allowed}, or ${sizes.allowed}`,
};

const group: Rules = {
  rows: rowsRule,
  cost: groupOf({
    of: { ...aFunction, isRequired: true },
    most: {
      check: (value) => typeof value === 'number' && value > 0 && value < Infinity,
      allowed: 'a number above 0',
      isRequired: true,
    },
    padded: flag,
    similar: groupOf({ overtaking: { ...whole(1, 1_000_000), isRequired: true } }),
  }),
  latencyTarget: milliseconds(1),
};

export const batchSizeRule = groupOf(group, rowsRule);

/** For a batched method, whose rows are no tensors that could be padded. */
export const batchSizeOfMethods = groupOf({ ...group, rows: aSize }, aSize);

export function batchSizeOf(given: BatchSize | undefined): ResolvedBatchSize {
  const limits: BatchSizeOptions | AllowedSizesOptions =
    typeof given === 'number' || isList(given)
      ? ({ rows: given } as BatchSizeOptions)
      : (given ?? {});
  const { rows, cost, latencyTarget } = limits;
  return {
    rows: isList(rows) ? rows.at(-1) : rows,
    sizes: isList(rows) ? [...rows] : undefined,
    cost: cost && {
      of: (row) => cost.of(row),
      most: cost.most,
      padded: cost.padded ?? false,
      overtaking: cost.similar?.overtaking ?? 0,
    },
    latencyTarget,
  };
}

function isList(value: unknown): value is readonly number[] {
  return Array.isArray(value);
}

/** @throws InvalidServingError for a model whose runs all have as many rows, and so one cost */
export function checkFixedBatch(
  { name, batchCost: cost }: Pick<ResolvedServing, 'name' | 'batchCost'>,
  { fixedBatch }: Pick<ModelSignature, 'fixedBatch'>,
): void {
  if (cost && fixedBatch !== undefined) {
    throw new InvalidServingError(
      `Serving "${name}" has batchSize.cost, and its model runs ${countOfRows(fixedBatch)} at a time whatever ` +
        'they cost; leave it out, or export the model with a dynamic batch axis',
    );
  }
}

/** @throws InvalidServingError for batches larger than the model's server takes */
export function checkMostRows(
  { name, keys }: Pick<ResolvedServing, 'name' | 'keys'>,
  { mostRows = Infinity }: Pick<ModelSignature, 'mostRows'>,
): void {
  for (const [key, { runSize, allowedSizes = [] }] of keys) {
    // Without its own size, a serving takes the server's.
    const given = runSize === Infinity ? [] : [runSize];
    const largest = Math.max(0, ...given, ...allowedSizes);
    if (largest > mostRows) {
      throw new InvalidServingError(
        `Serving "${name}", key "${key}": batches of ${largest} rows are more than the ` +
          `max_batch_size of the model on its server, ${mostRows}; lower batchSize`,
      );
    }
  }
}
