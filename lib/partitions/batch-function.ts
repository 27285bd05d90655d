import { type Container, flatten } from '../batch/container.js';
import type { FlatRows } from '../batch/list-rows.js';
import { InvalidBatchError, InvalidOutputError } from '../errors.js';
import { type Origin } from '../context/caller-context.js';

/**
 * What a batch function gives back: one result per row, as a list or as tensors with the rows on
 * their batch axis.
 */
export type BatchOutput = Container | readonly unknown[];

/**
 * Rows or results: tensors with rows, or a list with one entry per row. A list of tensors is a
 * tuple, unless the rows are plain values. Undefined for any other value.
 *
 * @throws InvalidBatchError for tensors that cannot be used
 */
export function rowsIn(value: unknown, plainRows: boolean): FlatRows | undefined {
  const list = Array.isArray(value) ? (value as unknown[]) : undefined;
  return plainRows && list ? list : (flatten(value) ?? list);
}

/** An invalid batch is the caller's fault, an invalid output that of the batch function. */
export function asOutput<T>(make: () => T): T {
  try {
    return make();
  } catch (cause) {
    throw cause instanceof InvalidBatchError
      ? new InvalidOutputError(`Unusable output: ${cause.message}`, { cause })
      : cause;
  }
}

/** The output of a batch and what the server has to say beside it. */
export interface BatchResult<Output = BatchOutput> {
  readonly output: Output;
  /** Handed to `postprocess` of every call with rows in the batch. */
  readonly metadata?: unknown;
}

/** In a list that a generator yields: this row is over, the others go on. */
export const DONE: unique symbol = Symbol.for('nestjs-serving:done') as never;

/** The rows that a step says to be over. */
export function endedRows(step: unknown): number[] {
  return Array.isArray(step) ? step.flatMap((entry, row) => (entry === DONE ? [row] : [])) : [];
}

/**
 * The options of one partition: those of the serving's `session` with what is particular to this
 * one.
 */
export type PartitionOptions = Readonly<Record<string, unknown>>;

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
   * Sends a value of the hook to the calls that asked for it, each its own rows: a list with an
   * entry per row, or tensors with the rows on axis 0. It is copied: the function can go on with
   * it.
   *
   * @throws InvalidOutputError when it has not one entry per row
   */
  readonly emit: (hook: string, value: unknown) => void;
  /**
   * False once the row has been `DONE`, or its caller has left: what is computed for it is lost.
   */
  readonly isWaiting: (row: number) => boolean;
}

/**
 * What a batch function can say: no part of what is cloned, where a context is sent on as metadata.
 */
class BatchMessages {
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
  return Object.assign(new BatchMessages(listener), info);
}

/** What a generator yields and a function returns. */
type Result<Output> = Output | WithMetadata<Output>;

/**
 * Runs one batch: `rows` is a list of plain values, or a container of tensors with the rows on axis
 * 0.
 *
 * A generator yields a list per step, with an entry per row, which may be `DONE`.
 */
export type BatchFunction<Rows = never, Output = unknown> = (
  rows: Rows,
  batch: BatchContext,
) =>
  | Result<Output>
  | Promise<Result<Output>>
  | AsyncGenerator<Result<Output>, void>
  | Generator<Result<Output>, void>;

/** Where and for what a batch function is built. */
export interface BatchFunctionContext {
  readonly key: string;
  /** The index of the partition, and its own options. */
  readonly partition: number;
  readonly options: PartitionOptions;
}

/**
 * Builds the batch function of one partition and key; called once for each when the serving starts.
 */
export type BatchFunctionFactory<Rows = never, Output = unknown> = (
  site: BatchFunctionContext,
) => BatchFunction<Rows, Output> | Promise<BatchFunction<Rows, Output>>;

/** Marks an output that comes with metadata; made by {@link withMetadata}. */
export class WithMetadata<Output> implements BatchResult<Output> {
  constructor(
    readonly output: Output,
    readonly metadata: unknown,
  ) {}
}

/**
 * Returned by a batch function that has something to say beside its output, for `postprocess` to
 * read.
 */
export function withMetadata<Output>(output: Output, metadata: unknown): WithMetadata<Output> {
  return new WithMetadata(output, metadata);
}

/** Receives what a batch sends before it ends. */
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
  /**
   * Resolves when there is room for another step, or nobody waits for one; where none is to be
   * waited for it is undefined.
   */
  room?(): Promise<void>;
}
