import type { Container } from '../batch/container.js';
import { type Origin } from '../context/call-context.js';
import type { SessionRows } from './session-states.js';

/** An output with one result per row: a list, or tensors with the rows on their batch axis. */
export type BatchOutput = Container | readonly unknown[];

/** A batch's output, and the server's metadata. */
export interface BatchResult<Output = BatchOutput> {
  /** A result for each row. */
  readonly output: Output;
  /** Passed to `postprocess` of every call with rows in the batch. */
  readonly metadata?: unknown;
}

/** Ends its row in a list that a generator yields; the other rows continue. */
export const DONE: unique symbol = Symbol.for('nestjs-serving:done') as never;

/** Indices of rows that end with a step. */
export function endedRowsOf(step: unknown): number[] {
  return Array.isArray(step) ? step.flatMap((entry, row) => (entry === DONE ? [row] : [])) : [];
}

/** The options of one partition: the serving's `session`, and the partition's own. */
export type PartitionOptions = Readonly<Record<string, unknown>>;

/** A batch's properties, without its rows. */
export interface BatchInfo {
  /** Its rows' key. */
  readonly key: string;
  /** Rows, padding not counted. */
  readonly size: number;
  /** Padding rows. */
  readonly padding: number;
  /** Index of the partition that runs it. */
  readonly partition: number;
  /** Its calls' origin, with `queue.separateOrigins`. */
  readonly origin?: Origin | undefined;
  /** The hooks that calls ask for; `emit` ignores all others. */
  readonly hooks: readonly string[];
  /** Each row's session; only in a serving with sessions, and not in its warm-up. */
  readonly sessions?: SessionRows | undefined;
}

/** The second parameter of a batch function: the batch, and messages to its calls. */
export interface BatchContext extends BatchInfo {
  /**
   * Sends a value of the hook to the calls that ask for it, to each its own rows: a list with an
   * entry per row, or tensors with the rows on axis 0. The value is copied, so the function can go
   * on with it.
   *
   * @throws InvalidOutputError for a value without one entry per row
   */
  readonly emit: (hook: string, value: unknown) => void;
  /** False once the row has been `DONE` or its caller has left: its results are dropped. */
  readonly isWaiting: (row: number) => boolean;
  /**
   * In a serving with `sessions`, the state of each row's session: undefined in its first step. The
   * function replaces the entries. They are kept where the step succeeds, so a state that the
   * function was given must not be changed itself.
   */
  readonly states: unknown[];
}

/** A context's methods: getters, which aren't cloned when the context is sent as metadata. */
class ContextMethods {
  readonly #listener: BatchListener;
  #states: unknown[] | undefined;

  constructor(listener: BatchListener, states: unknown[] | undefined) {
    this.#listener = listener;
    this.#states = states;
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

  get states(): unknown[] {
    return (this.#states ??= []);
  }
}

export function contextOf(
  info: BatchInfo,
  listener: BatchListener,
  states?: unknown[],
): BatchContext {
  return Object.assign(new ContextMethods(listener, states), info);
}

/** A function's result, or a generator's step. */
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

/** The partition and key that a batch function is built for. */
export interface BatchFunctionContext {
  /** The batches' key. */
  readonly key: string;
  /** The partition's index. */
  readonly partition: number;
  /** The partition's options. */
  readonly options: PartitionOptions;
}

/** Marks an output that comes with metadata; made by {@link withMetadata}. */
export class WithMetadata<Output> implements BatchResult<Output> {
  constructor(
    /** A result for each row. */
    readonly output: Output,
    /** Passed to `postprocess` of every call with rows in the batch. */
    readonly metadata: unknown,
  ) {}
}

/** An output with metadata for `postprocess`, to be returned by a batch function. */
export function withMetadata<Output>(output: Output, metadata: unknown): WithMetadata<Output> {
  return new WithMetadata(output, metadata);
}

/** Receives the hooks and steps of a batch before it ends. */
export interface BatchListener {
  /** The hooks that calls ask for. */
  readonly hooks: readonly string[];
  /**
   * Receives a hook's value. It is copied, unless nothing else refers to its memory (`own`).
   *
   * @throws InvalidOutputError for a value without one entry per row
   */
  hook(name: string, value: unknown, own?: boolean): void;
  /**
   * Receives a step of a generator: one entry per row, padding included.
   *
   * @throws InvalidOutputError for any other value
   */
  step(output: unknown, metadata: unknown): void;
  /** True if a caller still waits for the row. */
  isWaiting(row: number): boolean;
  /** Resolves once another step has room, or no caller waits; undefined without a limit. */
  room?(): Promise<void>;
  /** Its callers' terms, computed when asked for. */
  terms?(): BatchTerms;
  /** Calls back once no caller waits for a row; not at all in a warm-up, which has no callers. */
  onLeft?(callback: () => void): void;
}

/** What a batch's callers have asked for. */
export interface BatchTerms {
  /** The time until which a caller waits, in milliseconds of `performance.now()`. */
  readonly deadline: number;
  /** The highest priority of a call. */
  readonly priority: number;
}

/** The terms of a batch without callers. */
export const NO_TERMS: BatchTerms = { deadline: Infinity, priority: 0 };
