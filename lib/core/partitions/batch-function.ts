import type { Container } from '../batch/container.js';
import type { CallingBatch } from '../context/call-cycles.js';
import { type Origin } from '../context/call-context.js';
import type { StateRows } from './row-states.js';

/** One result per row: a list, or tensors with the rows on their batch axis. */
export type BatchOutput = Container | readonly unknown[];

/** A batch's output and metadata. */
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
  /** Each row's turn on its state; only in a serving with sessions, outside a warm-up. */
  readonly turns?: StateRows | undefined;
}

/** A batch function's second parameter. */
export interface BatchContext extends BatchInfo {
  /**
   * Sends a hook's value to the calls that ask for it, to each its own rows: a list with an entry
   * per row, or tensors with rows on axis 0. The value is copied, so the function may keep using
   * it.
   *
   * @throws InvalidOutputError for a value without one entry per row
   */
  readonly emit: (hook: string, value: unknown) => void;
  /** False once the row is `DONE` or its caller has left. */
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

/** Output with metadata, made by {@link withMetadata}. */
export class WithMetadata<Output> implements BatchResult<Output> {
  constructor(
    /** One result per row. */
    readonly output: Output,
    /** Passed to `postprocess` of every call with rows in the batch. */
    readonly metadata: unknown,
  ) {}
}

/** Adds metadata for `postprocess` to a batch function's output. */
export function withMetadata<Output>(output: Output, metadata: unknown): WithMetadata<Output> {
  return new WithMetadata(output, metadata);
}

/** A value with a mark, hidden from callers. */
export abstract class Marked<Value> {
  /** Distinguishes a mark from an output with a property `value`. */
  declare private readonly isMarked: true;

  constructor(
    /** The row's value. */
    readonly value: Value,
  ) {}
}

export interface BatchListener {
  /** Calls in a batch that has as many rows as it may: others probably wait; 0 in another one. */
  readonly callsIfFull?: number;
  /** False in a warm-up, and once all have left. */
  readonly hasCallers?: boolean;
  /** Undefined if the function can't call servings. */
  caller?(): CallingBatch | undefined;
  readonly hooks: readonly string[];
  /**
   * Copies the value unless it is its memory's only user (`own`).
   *
   * @throws InvalidOutputError for a value without one entry per row
   */
  hook(name: string, value: unknown, own?: boolean): void;
  /**
   * Receives one entry per row, padding included.
   *
   * @throws InvalidOutputError for any other value
   */
  step(output: unknown, metadata: unknown): void;
  isWaiting(row: number): boolean;
  /** Resolves once another step has room, or no caller waits; undefined without a limit. */
  room?(): Promise<void>;
  terms?(): BatchTerms;
  /** Calls back once no caller waits for a row; never in a warm-up. */
  onLeft?(callback: () => void): void;
}

export interface BatchTerms {
  /** Milliseconds of `performance.now()` when the last caller stops waiting. */
  readonly deadline: number;
  readonly priority: number;
}

export const NO_TERMS: BatchTerms = { deadline: Infinity, priority: 0 };
