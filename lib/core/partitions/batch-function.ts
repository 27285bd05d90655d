import type { Container } from '../batch/container.js';
import type { CallingBatch } from '../context/call-cycles.js';
import { type Origin } from '../context/call-context.js';
import type { StateRows } from './row-states.js';

/** An output with one result per row: a list, or tensors with the rows on their batch axis. */
export type BatchOutput = Container | readonly unknown[];

/** A batch's output and the server's metadata. */
export interface BatchResult<Output = BatchOutput> {
  /** One result per row. */
  readonly output: Output;
  /** Passed to `postprocess` of every call with rows in the batch. */
  readonly metadata?: unknown;
}

/** Ends its row in a generator's list; other rows continue. */
export const DONE: unique symbol = Symbol.for('nestjs-serving:done') as never;

export function endedRowsOf(step: unknown): number[] {
  return Array.isArray(step) ? step.flatMap((entry, row) => (entry === DONE ? [row] : [])) : [];
}

/** One partition's options: the serving's `session` and its own. */
export type PartitionOptions = Readonly<Record<string, unknown>>;

/** A batch's properties without its rows. */
export interface BatchInfo {
  /** Its rows' key. */
  readonly key: string;
  /** Rows without padding. */
  readonly size: number;
  /** Padding rows. */
  readonly padding: number;
  /** Its partition's index. */
  readonly partition: number;
  /** Its calls' origin, with `queue.separateOrigins`. */
  readonly origin?: Origin | undefined;
  /** The hooks that calls ask for; `emit` ignores others. */
  readonly hooks: readonly string[];
  /** Each row's turn on its state; not in a warm-up, and only in a serving with sessions. */
  readonly turns?: StateRows | undefined;
}

/** A batch function's second parameter: the batch, and messages to its calls. */
export interface BatchContext extends BatchInfo {
  /**
   * Sends a hook's value to the calls that ask for it, to each its own rows: a list with an entry
   * per row, or tensors with rows on axis 0. The value is copied, so the function may keep using
   * it.
   *
   * @throws InvalidOutputError for a value without one entry per row
   */
  readonly emit: (hook: string, value: unknown) => void;
  /** False once the row is `DONE` or its caller has left: its results are dropped. */
  readonly isWaiting: (row: number) => boolean;
  /**
   * With `sessions`, each row's session state: undefined in the first step. The function replaces
   * entries, which are kept if the step succeeds; so it must not change a given state.
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

type Result<Output> = Output | WithMetadata<Output>;

/**
 * Runs one batch: `rows` is a list of plain values, or a container of tensors with rows on axis 0.
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

/** The models that features run, by feature, with these inputs and lists of results. */
// oxlint-disable-next-line no-unused-vars -- Features use the parameters.
export interface OtherModels<Inputs, Results> {}

export type OtherModel<Inputs = never, Results = unknown> = OtherModels<
  Inputs,
  Results
>[keyof OtherModels<Inputs, Results>];

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
    /** One result per row. */
    readonly output: Output,
    /** Passed to `postprocess` of every call with rows in the batch. */
    readonly metadata: unknown,
  ) {}
}

/** A batch function's output with metadata for `postprocess`. */
export function withMetadata<Output>(output: Output, metadata: unknown): WithMetadata<Output> {
  return new WithMetadata(output, metadata);
}

/** A value with a mark for its partition, which callers don't see. */
export abstract class Marked<Value> {
  /** An output with a property `value` is no such mark for the compiler. */
  declare private readonly isMarked: true;

  constructor(
    /** The row's value. */
    readonly value: Value,
  ) {}
}

export interface BatchListener {
  /** The batch as the caller of servings; undefined if its function can call none. */
  caller?(): CallingBatch | undefined;
  /** The hooks that calls ask for. */
  readonly hooks: readonly string[];
  /**
   * Copies the value, unless nothing else refers to its memory (`own`).
   *
   * @throws InvalidOutputError for a value without one entry per row
   */
  hook(name: string, value: unknown, own?: boolean): void;
  /**
   * Receives a generator's step: one entry per row, padding included.
   *
   * @throws InvalidOutputError for any other value
   */
  step(output: unknown, metadata: unknown): void;
  /** True if a caller waits for the row. */
  isWaiting(row: number): boolean;
  /** Resolves once another step has room, or no caller waits; undefined without a limit. */
  room?(): Promise<void>;
  terms?(): BatchTerms;
  /** Calls back once no caller waits for a row; never in a warm-up. */
  onLeft?(callback: () => void): void;
}

export interface BatchTerms {
  /** When the last caller stops waiting, in milliseconds of `performance.now()`. */
  readonly deadline: number;
  /** The calls' highest priority. */
  readonly priority: number;
}

export const NO_TERMS: BatchTerms = { deadline: Infinity, priority: 0 };
