import { setImmediate as nextTurn } from 'node:timers/promises';
import type { Batch } from '../batch/batch.js';
import { FlatContainer, type FlatRows } from '../batch/container.js';
import { FunctionCalls } from '../context/call-cycles.js';
import {
  afterRun,
  BatchFailedError,
  InvalidOutputError,
  InvalidServingError,
  isError,
  isServingError,
  isThenable,
  messageOf,
  ServingLoadError,
} from '../errors.js';
import { countOfRows, formatValue } from '../format.js';
import { RowStates } from './row-states.js';
import { type Partition, type PartitionResult, STEPPED } from './partition.js';
import {
  type BatchContext,
  type BatchFunction,
  type BatchFunctionContext,
  type BatchInfo,
  type BatchListener,
  type BatchResult,
  contextOf,
  type PartitionOptions,
  WithMetadata,
} from './batch-function.js';

export interface FactoryPartition extends Partition {
  declare(keys: readonly string[]): Promise<void>;
  runRows(
    rows: FlatRows,
    info: BatchInfo,
    listener: BatchListener,
  ): Promise<PartitionResult | typeof STEPPED>;
}

/** Keeps rows' states, and links calls to their batch. */
export abstract class CodePartition implements Partition {
  readonly prefetch = 0;
  /** Set where the code runs in the application's own thread. */
  watch: BlockingWatch | undefined;
  private readonly states = new RowStates<unknown>();
  private readonly calls = new FunctionCalls();

  abstract run(
    batch: Batch,
    info: BatchInfo,
    listener: BatchListener,
  ): Promise<PartitionResult | typeof STEPPED>;

  forget(ids: readonly number[]): void {
    this.states.end(ids);
  }

  async close(): Promise<void> {
    this.calls.end();
  }

  /**
   * Keeps the old state of a row whose result is an error.
   *
   * @throws InvalidOutputError for steps, if rows have states
   */
  protected runCode(
    info: BatchInfo,
    listener: BatchListener,
    code: (context: BatchContext) => Settled | Promise<Settled>,
  ): Settled | Promise<Settled> {
    const { turns, padding } = info;
    const watched = this.watch && listener.hasCallers ? this.watch.around(info.size, code) : code;
    const run = (context: BatchContext) =>
      this.calls.run(listener.caller?.(), () => watched(context));
    if (!turns) {
      return run(contextOf(info, listener));
    }
    const step = this.states.begin(turns);
    const own = [...step.states, ...Array.from({ length: padding }, () => undefined)];
    const finish = (result: Settled): Settled => {
      if (result === STEPPED) {
        throw new InvalidOutputError(
          'A step from a state has one result, and the batch function is a generator',
        );
      }
      const { output } = result;
      step.keep(own, (row) => !(Array.isArray(output) && isError(output[row])));
      return result;
    };
    const result = afterRun(() => run(contextOf(info, listener, own)));
    return result instanceof Promise ? result.then(finish) : finish(result);
  }
}

/** Slow runs before the warning: a single one may be a pause of the machine. */
const SLOW_RUNS = 3;

/** Milliseconds, of which one run is enough. */
const VERY_SLOW = 500;

/** Warns once of runs that hold the event loop. */
export class BlockingWatch {
  private slowRuns = 0;
  private hasWarned = false;

  constructor(
    /** Milliseconds, and what the warning calls them. */
    private readonly most: { readonly limit: number; readonly name: string },
    private readonly remedy: string,
    /** Logs a line that continues "Serving ...". */
    private readonly warn: (line: string) => void,
  ) {}

  /** Observes what the code does until it returns, such as a promise. */
  around<Site, Result>(rows: number, code: (site: Site) => Result): (site: Site) => Result {
    return (site) => {
      const begin = performance.now();
      try {
        return code(site);
      } finally {
        this.observe(rows, performance.now() - begin);
      }
    };
  }

  observe(rows: number, milliseconds: number): void {
    const { limit, name } = this.most;
    this.slowRuns = milliseconds > limit ? this.slowRuns + 1 : 0;
    const isThird = this.slowRuns === SLOW_RUNS;
    if ((isThird || milliseconds > VERY_SLOW) && !this.hasWarned) {
      this.hasWarned = true;
      const why = isThird ? `: the third run in a row above ${name}` : '';
      this.warn(
        `held the event loop for ${milliseconds.toFixed(1)} ms with a run of ${countOfRows(rows)}${why}. ` +
          `Nothing else of the application runs meanwhile; ${this.remedy}`,
      );
    }
  }
}

export class FunctionPartition extends CodePartition implements FactoryPartition {
  private readonly functions = new PerKey((key) => this.build(key));

  constructor(
    private readonly factory: (site: BatchFunctionContext) => unknown,
    private readonly index: number,
    private readonly options: PartitionOptions,
  ) {
    super();
  }

  declare(keys: readonly string[]): Promise<void> {
    return this.functions.declare(keys);
  }

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
    return this.runCode(info, listener, (context) =>
      resultOf(batchFunction(given, context), info.size, listener),
    );
  }

  private async build(key: string): Promise<BatchFunction<unknown>> {
    const { index: partition, options } = this;
    const built = await made(this.factory, { key, partition, options });
    if (typeof built !== 'function') {
      throw new InvalidServingError(
        `The factory must return a function that runs a batch; for partition ${partition} and ` +
          `key "${key}" it returned ${formatValue(built)}${hintOf(built)}`,
      );
    }
    return built as BatchFunction<unknown>;
  }
}

async function made(
  factory: (site: BatchFunctionContext) => unknown,
  site: BatchFunctionContext,
): Promise<unknown> {
  try {
    return await factory(site);
  } catch (cause) {
    // It may have been written as the batch function itself.
    throw cause instanceof TypeError && /is not (?:a function|iterable)/.test(cause.message)
      ? new ServingLoadError(
          `The factory failed: ${messageOf(cause)}. It is called once, without rows, and returns the ` +
            'batch function: () => (rows) => results',
          { cause },
        )
      : cause;
  }
}

function hintOf(built: unknown): string {
  return typeof built === 'object' && built !== null && 'step' in built
    ? '; for a model that runs step by step, add the option sequence: {}'
    : '';
}

/** A failure to load is not the batch's. */
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

/** Synchronous if possible. Runs a generator until it ends or no caller waits. */
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
    // Lets messages from leaving callers arrive.
    await nextTurn();
    await listener.room?.();
    if (!isAwaited(size, listener)) {
      break;
    }
  }
  return STEPPED;
}

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

/** Awaits the promises in a list; a rejection becomes its row's Error. */
export function settledRows(output: unknown): unknown {
  return Array.isArray(output) && output.some(isThenable) ? settled(output) : output;
}

async function settled(list: readonly unknown[]): Promise<unknown[]> {
  const results = await Promise.allSettled(list);
  return results.map((result) =>
    result.status === 'fulfilled' ? result.value : errorOf(result.reason),
  );
}

function errorOf(reason: unknown): Error {
  return isError(reason)
    ? reason
    : new BatchFailedError(`The promise of a row was rejected: ${messageOf(reason)}`, {
        cause: reason,
      });
}

/** Beyond this number, the oldest is dropped, and built anew if used again. */
const MAX_UNDECLARED = 1024;

/** Built once per key: for declared keys at start. */
export class PerKey<T> {
  private readonly declared = new Map<string, Promise<T>>();
  private readonly undeclared = new Map<string, Promise<T>>();
  /** Values need no await. */
  private readonly built = new Map<string, T>();

  constructor(private readonly build: (key: string) => Promise<T>) {}

  async declare(keys: readonly string[]): Promise<void> {
    for (const key of keys) {
      const built = this.build(key);
      this.declared.set(key, built);
      this.built.set(key, await built);
    }
  }

  known(key: string): T | undefined {
    return this.built.get(key);
  }

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
    // Failures aren't cached.
    built.catch(() => undeclared.delete(key));
    return built;
  }
}
