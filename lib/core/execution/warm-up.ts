import { countOfRows } from '../format.js';
import { Batch } from '../batch/batch.js';
import type { Container } from '../batch/container.js';
import { zerosOf, Tensor } from '../batch/tensor.js';
import { InvalidInputError, InvalidServingError, messageOf, ServingLoadError } from '../errors.js';
import {
  axesOf,
  describePort,
  hasRows,
  type ModelSignature,
} from '../partitions/model/model-signature.js';
import type { BatchRunner } from './batch-run.js';
import type { CallerSide } from './caller-side.js';
import { DEFAULT_CALL_OPTIONS } from './resolved-call-options.js';
import { type Intake, mostRowsLike, OF_NO_CALL, rowCostsOf } from './intake.js';
import type { Lanes } from './lanes.js';
import { type BatchRequest, ReplyRequest } from './request.js';
import type { OpenedEngine } from '../partitions/engine.js';
import type { Partition } from '../partitions/partition.js';
import type { KeyOptions, ResolvedServing } from '../definition/resolved-serving.js';
import { BATCHES_TO_BELIEVE } from '../batching/run-times.js';
import type { Batcher } from '../batching/batcher.js';

/** @throws InvalidServingError naming an input that can't be used */
export async function examplesOf(
  inputs: readonly unknown[],
  caller: CallerSide,
  intake: Intake,
): Promise<Batch[]> {
  const examples: Batch[] = [];
  for (const [index, input] of inputs.entries()) {
    try {
      const { rows } = await caller.prepare(input, DEFAULT_CALL_OPTIONS);
      if (!(rows instanceof Batch) || rows.size === 0) {
        throw new InvalidInputError('An example must give a batch with rows');
      }
      const example = rows.slice(0, 1).pad(0);
      intake.admit(example, OF_NO_CALL);
      examples.push(example);
    } catch (cause) {
      throw new InvalidServingError(`${messageOf(cause)} (input ${index} of warmUp)`, { cause });
    }
  }
  return examples;
}

/**
 * Adds a row of zeros for each key with allowed sizes and no example.
 *
 * @throws InvalidServingError for a model that needs an example, and for allowed sizes of a model
 * without a batch axis
 */
function rowsFor(
  { name, keys }: ResolvedServing,
  examples: readonly Batch[],
  signature: ModelSignature | undefined,
): Batch[] {
  const [padded] = [...keys].find(([, { allowedSizes }]) => allowedSizes) ?? [];
  if (signature && !hasRows(signature.inputs) && padded !== undefined) {
    throw new InvalidServingError(
      `Serving "${name}" is to pad the batches of key "${padded}", and its model has no batch ` +
        'axis: each call is one run; give batchSize as a number',
    );
  }
  const known = new Set(examples.map(({ key }) => key));
  const others = [...keys].filter(
    ([key, { allowedSizes }]) => signature && allowedSizes && !known.has(key),
  );
  return [...examples, ...others.map(([key]) => zeroRow(name, signature!).withKey(key))];
}

/** @throws InvalidServingError naming an input with an open axis */
function zeroRow(serving: string, { inputs }: ModelSignature): Batch {
  const row: Record<string, Container> = {};
  for (const port of inputs) {
    const dims = port.shape.map((dim, axis) => (axis === port.batchAxis ? 1 : dim));
    const open = dims.findIndex((dim) => typeof dim !== 'number');
    if (open >= 0) {
      throw new InvalidServingError(
        `Serving "${serving}" is to run every allowed size before it is ready, but axis ${open} ` +
          `of ${describePort(port)} may have any size; ` +
          'give example inputs: warmUp: [...]',
      );
    }
    row[port.name] = new Tensor(port.type, zerosOf(port.type, dims as number[]), dims as number[]);
  }
  return Batch.ofContainer(row, axesOf(inputs));
}

interface WarmUp {
  readonly options: ResolvedServing;
  readonly examples: readonly Batch[];
  readonly opened: OpenedEngine;
  readonly lanes: Lanes;
  readonly runner: BatchRunner;
  readonly intake: Intake;
  readonly batcher: Pick<Batcher<BatchRequest>, 'learn'>;
}

export interface WarmedUp {
  /** Keys whose allowed sizes it can't run without an example. */
  readonly cold: readonly string[];
  /** Batches on each partition. */
  readonly batches: number;
}

/**
 * Runs again after a restart.
 *
 * @throws ServingLoadError if a batch fails
 */
export async function warmUp({
  options,
  examples,
  opened,
  lanes,
  runner,
  intake,
  batcher,
}: WarmUp): Promise<WarmedUp> {
  const { batchCost } = options;
  const rows = rowsFor(options, examples, opened.signature);
  const batches = rows.flatMap((example) => {
    const { rows: row, lane } = intake.admit(example, OF_NO_CALL);
    const most = batchCost
      ? mostRowsLike(options.name, row, batchCost, lane.limits.batchSize)
      : Infinity;
    const isTimed = lane.limits.latencyTarget !== undefined || options.timeout !== undefined;
    const sizes = repeated(
      row,
      sizesOf(lane.limits, isTimed).map((size) => Math.min(size, most)),
    );
    const first = sizes.map((batch) => ({ batch, lane, rowCosts: undefined, isLearned: false }));
    const rounds = roundsOf(lane.limits, sizes.length, isTimed);
    if (rounds === 0) {
      return first;
    }
    // A size's first run takes longer.
    const others = sizes.map((batch) => {
      const rowCosts = batchCost && rowCostsOf(options.name, batchCost, batch);
      return { batch, lane, rowCosts, isLearned: true };
    });
    return [first, ...Array.from({ length: rounds }, () => others)].flat();
  });
  await Promise.all(
    opened.partitions.map((partition, index) => {
      const warm = async (warmed: Partition): Promise<void> => {
        for (const { batch, lane, rowCosts, isLearned } of batches) {
          const begin = performance.now();
          const error = await runner.tryOut(new ReplyRequest(batch, lane), index, warmed);
          if (error !== undefined) {
            throw failed(batch, error, options.name);
          }
          if (isLearned) {
            const time = performance.now() - begin;
            batcher.learn({ lane, size: batch.size, rowCosts }, time);
          }
        }
      };
      return partition.warmUp ? partition.warmUp(warm) : warm(partition);
    }),
  );
  const warm = new Set(rows.map(({ key }) => key));
  const cold = lanes.keys.filter((key) => lanes.optionsOf(key).allowedSizes && !warm.has(key));
  return { cold, batches: batches.length };
}

/** Times of two sizes predict any size between them. */
function sizesOf({ allowedSizes, batchSize }: KeyOptions, isTimed: boolean): readonly number[] {
  return allowedSizes ?? [...new Set([isTimed ? 1 : batchSize, batchSize])];
}

/** Runs once for a timeout; for a target, until we can keep it. */
function roundsOf({ latencyTarget }: KeyOptions, sizes: number, isTimed: boolean): number {
  const most = Math.ceil(BATCHES_TO_BELIEVE / sizes);
  return latencyTarget !== undefined ? most : isTimed ? 1 : 0;
}

function failed({ size, key }: Batch, cause: unknown, serving: string): ServingLoadError {
  const what = messageOf(cause).replace(`Serving "${serving}": `, '');
  return new ServingLoadError(
    `The warm-up with ${countOfRows(size)} of key "${key}" failed: ${what}`,
    { cause },
  );
}

function repeated(row: Batch, sizes: readonly number[]): Batch[] {
  return sizes.map((size) => Batch.merge(Array.from({ length: size }, () => row)));
}
