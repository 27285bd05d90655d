import { setImmediate as nextTurn } from 'node:timers/promises';
import type { Batch } from '../batch/batch.js';
import { FlatContainer, type FlatRows } from '../batch/container.js';
import {
  BatchFailedError,
  InvalidServingError,
  isError,
  isServingError,
  messageOf,
  ServingLoadError,
} from '../errors.js';
import { formatValue } from '../format.js';
import { inSessions, SessionStates } from './session-states.js';
import { type Partition, type PartitionResult, STEPPED } from './partition.js';
import {
  type BatchFunction,
  type BatchFunctionContext,
  type BatchInfo,
  type BatchListener,
  type BatchResult,
  type PartitionOptions,
  WithMetadata,
} from './batch-function.js';

/** Batch functions, one for each key, built and called in the thread of this object. */
export class FunctionPartition implements Partition {
  readonly prefetch = 0;
  private readonly functions = new PerKey((key) => this.build(key));
  private readonly states = new SessionStates<unknown>();

  constructor(
    private readonly factory: (site: BatchFunctionContext) => unknown,
    private readonly index: number,
    private readonly options: PartitionOptions,
  ) {}

  /** Builds the functions for the keys that the serving declares, one after the other. */
  declare(keys: readonly string[]): Promise<void> {
    return this.functions.declare(keys);
  }

  /** The function for the key, built on first use. */
  get(key: string): Promise<BatchFunction<unknown>> {
    return this.functions.get(key);
  }

  run(
    batch: Batch,
    info: BatchInfo,
    listener: BatchListener,
  ): Promise<PartitionResult | typeof STEPPED> {
    return this.runRows(batch.gather(), info, listener);
  }

  async runRows(
    rows: FlatRows,
    info: BatchInfo,
    listener: BatchListener,
  ): Promise<PartitionResult | typeof STEPPED> {
    const batchFunction =
      this.functions.known(info.key) ?? (await loadForBatch(() => this.get(info.key)));
    const given = rows instanceof FlatContainer ? rows.toContainer() : rows;
    return inSessions(this.states, info, listener, (context) =>
      resultOf(batchFunction(given, context), info.size, listener),
    );
  }

  endSessions(ids: readonly number[]): void {
    this.states.end(ids);
  }

  async close(): Promise<void> {}

  private async build(key: string): Promise<BatchFunction<unknown>> {
    const { index: partition, options } = this;
    const built: unknown = await this.factory({ key, partition, options });
    if (typeof built !== 'function') {
      throw new InvalidServingError(
        `The factory must return a function that runs a batch; for partition ${partition} and ` +
          `key "${key}" it returned ${formatValue(built)}${hintOf(built)}`,
      );
    }
    return built as BatchFunction<unknown>;
  }
}

function hintOf(built: unknown): string {
  return typeof built === 'object' && built !== null && 'step' in built
    ? '; for a model that runs step by step, add the option sequence: {}'
    : '';
}

/** Loads what a batch needs and the start did not load; a failure is not one of the batch. */
export async function loadForBatch<T>(load: () => Promise<T>): Promise<T> {
  try {
    return await load();
  } catch (cause) {
    throw isServingError(cause)
      ? cause
      : new ServingLoadError(`Cannot load what the batch needs: ${messageOf(cause)}`, { cause });
  }
}

type Steps = AsyncGenerator | Generator;

type Settled = PartitionResult | typeof STEPPED;

/**
 * A batch function's result; a promise only if something is asynchronous. Runs a generator
 * until it ends or no caller waits for it.
 */
export function resultOf(
  returned: unknown,
  size: number,
  listener: BatchListener,
): Settled | Promise<Settled> {
  if (isThenable(returned)) {
    return Promise.resolve(returned).then((result) => resultOf(result, size, listener));
  }
  return isGenerator(returned)
    ? runSteps(returned, size, listener)
    : settleResult(splitMetadata(returned));
}

async function runSteps(
  steps: Steps,
  size: number,
  listener: BatchListener,
): Promise<typeof STEPPED> {
  for await (const step of steps) {
    const { output, metadata } = splitMetadata(step);
    listener.step(await settledRows(output), metadata);
    // Lets the messages of callers that leave arrive between two steps.
    await nextTurn();
    await listener.room?.();
    if (!isAwaited(size, listener)) {
      break;
    }
  }
  return STEPPED;
}

/** The result with the values of its list's promises. */
export function settleResult<Result extends BatchResult<unknown>>(
  result: Result,
): Result | Promise<Result> {
  const output = settledRows(result.output);
  return output instanceof Promise
    ? output.then((rows: unknown) => ({ ...result, output: rows }))
    : result;
}

function isAwaited(size: number, listener: BatchListener): boolean {
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

function splitMetadata(result: unknown): BatchResult<unknown> {
  return result instanceof WithMetadata ? (result as BatchResult<unknown>) : { output: result };
}

/**
 * A batch's output with the values of its list's promises. A rejected promise's reason becomes its
 * row's Error. Other outputs aren't changed.
 */
export function settledRows(output: unknown): unknown {
  return Array.isArray(output) && output.some(isThenable) ? settled(output) : output;
}

async function settled(list: readonly unknown[]): Promise<unknown[]> {
  const results = await Promise.allSettled(list);
  return results.map((result) =>
    result.status === 'fulfilled' ? result.value : errorOf(result.reason),
  );
}

export function isThenable(value: unknown): value is PromiseLike<unknown> {
  if (typeof value !== 'object' || value === null) {
    return false;
  }
  try {
    return 'then' in value && typeof value.then === 'function';
  } catch {
    // Only the caller of this row gets the error, when the row is read.
    return false;
  }
}

function errorOf(reason: unknown): Error {
  return isError(reason)
    ? reason
    : new BatchFailedError(`The promise of a row was rejected: ${messageOf(reason)}`, {
        cause: reason,
      });
}

/** Values for undeclared keys; beyond it the oldest is dropped, and built anew if used again. */
const MAX_UNDECLARED = 1024;

/** What is built once for each key of a partition: for the declared ones at start. */
export class PerKey<T> {
  private readonly declared = new Map<string, Promise<T>>();
  private readonly undeclared = new Map<string, Promise<T>>();
  /** The values of declared keys, once they are built: a batch awaits nothing for them. */
  private readonly built = new Map<string, T>();

  constructor(private readonly build: (key: string) => Promise<T>) {}

  /** Builds the declared keys' values, one after the other. */
  async declare(keys: readonly string[]): Promise<void> {
    for (const key of keys) {
      const built = this.build(key);
      this.declared.set(key, built);
      this.built.set(key, await built);
    }
  }

  /** A declared key's value, if it is built. */
  known(key: string): T | undefined {
    return this.built.get(key);
  }

  /** The value for the key, built on first use. */
  get(key: string): Promise<T> {
    const { declared, undeclared } = this;
    const known = declared.get(key) ?? undeclared.get(key);
    if (known) {
      return known;
    }
    if (undeclared.size === MAX_UNDECLARED) {
      undeclared.delete(undeclared.keys().next().value!);
    }
    const built = this.build(key);
    undeclared.set(key, built);
    // Does not cache a failure.
    built.catch(() => undeclared.delete(key));
    return built;
  }
}
