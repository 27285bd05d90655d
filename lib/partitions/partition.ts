import type { Batch } from '../batch/batch.js';
import type { Container } from '../batch/container.js';
import { PartitionLostError, RequestTooLargeError } from '../errors.js';
import type { PartitionStatus } from './partition-status.js';

/** What a batch function gives back: one result per row, as a list or as tensors with the rows on their batch axis. */
export type BatchOutput = Container | readonly unknown[];

/** The output of a batch and what the server has to say beside it. */
export interface BatchResult<Output = BatchOutput> {
  readonly output: Output;
  /** Handed to `postprocess` of every call with rows in the batch. */
  readonly metadata?: unknown;
}

/** The result of a batch as a partition gives it. */
export interface PartitionResult extends BatchResult {
  /** Whether nothing else refers to the memory of the output. If not, its tensors are copied at once. */
  readonly own?: boolean;
}

/** In place of a result: the batch function was a generator, and has yielded all of it step by step. */
export const STEPPED = Symbol('stepped');

/** In a list that a generator yields: this row is over, the others go on. */
export const DONE: unique symbol = Symbol.for('nestjs-serving:done') as never;

/** The rows that a step says to be over. */
export function endedRows(step: unknown): number[] {
  return Array.isArray(step) ? step.flatMap((entry, row) => (entry === DONE ? [row] : [])) : [];
}

/** Hears what a batch says before it ends. */
export interface BatchListener {
  /** The hooks whose values somebody waits for. */
  readonly hooks: readonly string[];
  /**
   * The value of a hook: one entry per row. It is copied, unless it is the listener's `own`.
   *
   * @throws InvalidOutputError when it has not
   */
  hook(name: string, value: unknown, own?: boolean): void;
  /**
   * What a generator has yielded: one entry per row, padding included.
   *
   * @throws InvalidOutputError when it has not
   */
  step(output: unknown, metadata: unknown): void;
  /** Whether somebody still waits for the row. */
  isWaiting(row: number): boolean;
  /** Resolves when there is room for another step, or nobody waits for one; where none is to be waited for it is undefined. */
  room?(): Promise<void>;
}

/** The partition was lost before it had begun the batch: another can run it, and nothing runs twice. */
export class NotStartedError extends PartitionLostError {}

/** The batch was taken back before it began, since another partition can run it now. */
export class TakenBackError extends NotStartedError {}

/** As {@link NotStartedError}, while the batch was on its way to the partition: that may have died of what it received. */
export class LostOnTheWayError extends NotStartedError {}

/** The rows of a batch are too much for one message to the partition. Nothing of it has run, and half of it may fit. */
export class TooLargeToSendError extends RequestTooLargeError {}

/** The partition was lost when it had ended the batch, and what that gave with it: whatever it died of, it was not this batch. */
export class OutputLostError extends PartitionLostError {}

/** Rows of a batch cannot be handed over to what would run it. Nothing of it has run, so the others can run without them. */
export class UnfitRows extends Error {
  override readonly name = 'UnfitRows';

  constructor(
    /** What is wrong with each of them, by its place in the batch. */
    readonly faults: ReadonlyMap<number, Error>,
  ) {
    super(`${faults.size} rows of a batch cannot be handed over`);
  }
}

/** One session: runs one batch at a time. */
export interface Partition {
  /** How many full batches may be handed over while one runs: 1 where the transfer hides behind the run, else 0. */
  readonly prefetch: number;
  /** Why it takes no batch now; it soon comes back by itself. */
  readonly away?: Error | undefined;
  /** Why it can run nothing: nobody should wait for it, though it may come back. */
  readonly lost?: Error | undefined;
  /** How it is; one that does not say is up until it is lost. */
  readonly status?: PartitionStatus | undefined;
  /** Calls the listener whenever `away`, `lost` or `status` has changed. */
  onChange?(listener: () => void): void;
  /**
   * Rejects when the batch fails; the partition then goes on with the next.
   *
   * @throws UnfitRows when it could run without some of its rows
   */
  run(batch: Batch, info: BatchInfo, listener: BatchListener): Promise<PartitionResult | typeof STEPPED>;
  /** Has what runs its batches warmed up, now and whenever it has been started again, before it gets a batch of a caller. */
  warmUp?(warm: (runner: Partition) => Promise<void>): Promise<void>;
  /** Takes back the batches that were handed ahead: they reject with a NotStartedError, and never run. What runs need not be waited for. */
  fence?(): void;
  /** Takes back the batches that were handed ahead and have not begun: they reject with a TakenBackError, and never run. */
  takeBack?(): void;
  /** Ends it now, whatever it runs; only where that harms nobody else. */
  kill?(): void;
  /** Ends it as soon as that is safe: a process at once, a thread when its event loop turns. It is not started again. */
  halt?(): void;
  /** Ends it after the batches it holds. */
  close(): Promise<void>;
}

/** The options of one partition: those of the serving's `session` with what is particular to this one. */
export type PartitionOptions = Readonly<Record<string, unknown>>;

/** Where a call came from. */
export type Origin = 'http' | 'rpc' | 'ws' | 'graphql' | 'in-process' | (string & {});

/** What is to be known of a batch beside its rows. */
export interface BatchInfo {
  readonly key: string;
  /** Rows, padding not counted. */
  readonly size: number;
  readonly padding: number;
  /** The index of the partition that runs it. */
  readonly partition: number;
  /** Where its calls came from, in a serving with `separateOrigins`. */
  readonly origin?: Origin | undefined;
  /** The hooks that somebody waits for; `emit` ignores all others. */
  readonly hooks: readonly string[];
}

/** What a batch function is told about the batch, and what it can say before the batch ends. */
export interface BatchContext extends BatchInfo {
  /**
   * Sends a value of the hook to the calls that asked for it, each its own rows: a list with an entry per row, or tensors with
   * the rows on axis 0. It is copied: the function can go on with it.
   *
   * @throws InvalidOutputError when it has not one entry per row
   */
  readonly emit: (hook: string, value: unknown) => void;
  /** False once the row has been `DONE`, or its caller has left: what is computed for it is lost. */
  readonly isWaiting: (row: number) => boolean;
}

/** What a batch function can say: no part of what is cloned, where a context is sent on as metadata. */
class Saying {
  readonly #listener: BatchListener;

  constructor(listener: BatchListener) {
    this.#listener = listener;
  }

  get emit(): BatchContext['emit'] {
    const listener = this.#listener;
    return (hook, value) => {
      if (listener.hooks.includes(hook)) {
        listener.hook(hook, value);
      }
    };
  }

  get isWaiting(): BatchContext['isWaiting'] {
    const listener = this.#listener;
    return (row) => listener.isWaiting(row);
  }
}

export function contextOf(info: BatchInfo, listener: BatchListener): BatchContext {
  return Object.assign(new Saying(listener), info);
}

/** What a generator yields and a function returns. */
type Result<Output> = Output | WithMetadata<Output>;

/**
 * Runs one batch: `rows` is a list of plain values, or a container of tensors with the rows on axis 0.
 *
 * A generator yields a list per step, with an entry per row, which may be `DONE`.
 */
export type BatchFunction<Rows = never, Output = unknown> = (
  rows: Rows,
  batch: BatchContext,
) => Result<Output> | Promise<Result<Output>> | AsyncGenerator<Result<Output>, void> | Generator<Result<Output>, void>;

/** Where and for what a batch function is built. */
export interface BatchFunctionSite {
  readonly key: string;
  /** The index of the partition, and its own options. */
  readonly partition: number;
  readonly options: PartitionOptions;
}

/** Builds the batch function of one partition and key; called once for each when the serving starts. */
export type BatchFunctionFactory<Rows = never, Output = unknown> = (
  site: BatchFunctionSite,
) => BatchFunction<Rows, Output> | Promise<BatchFunction<Rows, Output>>;

/** Marks an output that comes with metadata; made by {@link withMetadata}. */
export class WithMetadata<Output> implements BatchResult<Output> {
  constructor(
    readonly output: Output,
    readonly metadata: unknown,
  ) {}
}

/** Returned by a batch function that has something to say beside its output, for `postprocess` to read. */
export function withMetadata<Output>(output: Output, metadata: unknown): WithMetadata<Output> {
  return new WithMetadata(output, metadata);
}
