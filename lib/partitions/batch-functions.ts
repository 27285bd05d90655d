import { setImmediate as endOfTurn } from 'node:timers/promises';
import { InvalidServingError, isServingError, messageOf, ServingLoadError } from '../errors.js';
import { formatValue } from '../format.js';
import { STEPPED } from './partition.js';
import { settledRows } from './settled-rows.js';
import {
  type BatchFunction,
  type BatchFunctionFactory,
  type BatchInfo,
  type BatchResult,
  contextOf,
  type PartitionOptions,
  WithMetadata,
  type BatchListener,
} from './batch-function.js';

/**
 * Limit of the functions for keys that are not declared, which `run` takes. Beyond it the oldest is
 * dropped, and built anew when its key is used again.
 */
const OTHER_KEYS = 1024;

/**
 * The batch functions of one partition, one for each key; built and called in the thread where this
 * object lives.
 */
export class BatchFunctions {
  /** Of the keys that the serving declares, for as long as the partition lives. */
  private readonly declared = new Map<string, Promise<BatchFunction<unknown>>>();
  private readonly others = new Map<string, Promise<BatchFunction<unknown>>>();

  constructor(
    private readonly factory: BatchFunctionFactory<unknown>,
    private readonly partition: number,
    private readonly options: PartitionOptions,
  ) {}

  /** Builds the functions for the keys that the serving declares, one after the other. */
  async declare(keys: readonly string[]): Promise<void> {
    for (const key of keys) {
      const built = this.build(key);
      this.declared.set(key, built);
      await built;
    }
  }

  /** The function for the key, built when it is first asked for. */
  get(key: string): Promise<BatchFunction<unknown>> {
    const { declared, others } = this;
    const known = declared.get(key) ?? others.get(key);
    if (known) {
      return known;
    }
    if (others.size === OTHER_KEYS) {
      others.delete(others.keys().next().value!);
    }
    const built = this.build(key);
    others.set(key, built);
    // A later call tries again.
    built.catch(() => others.delete(key));
    return built;
  }

  async run(
    rows: unknown,
    info: BatchInfo,
    listener: BatchListener,
  ): Promise<BatchResult | typeof STEPPED> {
    const batchFunction = await lateLoad(() => this.get(info.key));
    return resultOf(batchFunction(rows, contextOf(info, listener)), info.size, listener) as Promise<
      BatchResult | typeof STEPPED
    >;
  }

  private async build(key: string): Promise<BatchFunction<unknown>> {
    const { partition, options } = this;
    const built: unknown = await this.factory({ key, partition, options });
    if (typeof built !== 'function') {
      throw new InvalidServingError(
        `The factory must return a function that runs a batch; for partition ${partition} and ` +
          `key "${key}" it returned ${formatValue(built)}`,
      );
    }
    return built as BatchFunction<unknown>;
  }
}

/**
 * Loads what a batch needs and the start did not; when that fails, it is not the batch that failed.
 */
export async function lateLoad<T>(load: () => Promise<T>): Promise<T> {
  try {
    return await load();
  } catch (cause) {
    throw isServingError(cause)
      ? cause
      : new ServingLoadError(`Cannot load what the batch needs: ${messageOf(cause)}`, { cause });
  }
}

type Steps = AsyncGenerator | Generator;

/**
 * The result of a batch function; of a generator once it has ended, or nobody waits for it any
 * more.
 */
export async function resultOf(
  returned: unknown,
  size: number,
  listener: BatchListener,
): Promise<BatchResult<unknown> | typeof STEPPED> {
  const result = await returned;
  return isGenerator(result)
    ? runSteps(result, size, listener)
    : settledResult(withoutMark(result));
}

async function runSteps(
  steps: Steps,
  size: number,
  listener: BatchListener,
): Promise<typeof STEPPED> {
  for await (const step of steps) {
    const { output, metadata } = withoutMark(step);
    listener.step(await settledRows(output), metadata);
    // A caller that leaves is heard of between two steps, also in a worker.
    await endOfTurn();
    await listener.room?.();
    if (!isWanted(size, listener)) {
      break;
    }
  }
  return STEPPED;
}

/** The result with the values of the promises in its list. */
export function settledResult<Result extends BatchResult<unknown>>(
  result: Result,
): Result | Promise<Result> {
  const output = settledRows(result.output);
  return output instanceof Promise
    ? output.then((rows: unknown) => ({ ...result, output: rows }))
    : result;
}

function isWanted(size: number, listener: BatchListener): boolean {
  for (let row = 0; row < size; row++) {
    if (listener.isWaiting(row)) {
      return true;
    }
  }
  return false;
}

function isGenerator(value: unknown): value is Steps {
  const tag = Object.prototype.toString.call(value);
  return tag === '[object AsyncGenerator]' || tag === '[object Generator]';
}

function withoutMark(result: unknown): BatchResult<unknown> {
  return result instanceof WithMetadata ? (result as BatchResult<unknown>) : { output: result };
}
