import { PartitionLostError, ServingError } from '../errors.js';
import { Queue } from '../streaming/queue.js';
import type { Batch } from '../batch/batch.js';
import type { Container } from '../batch/container.js';
import {
  type BatchContext,
  withMetadata,
  type BatchFunction,
  type BatchOutput,
} from '../partitions/batch-function.js';

/** Ends a held batch in its partition. */
export interface BatchEnding {
  readonly resolve: (result: unknown) => void;
  readonly reject: (error: unknown) => void;
  /** Ends the partition for good. */
  readonly lose: (error: Error) => void;
  /** Called when the batch has ended. */
  readonly ended: () => unknown;
}

/**
 * A batch that runs until the test ends it: by `finish`, `fail` or `crash`, or by steps and `end`.
 */
export class HeldBatch<Row = unknown, Result = unknown> {
  private steps: Queue<unknown> | undefined;
  private isHeld = true;

  constructor(
    /** A list of plain values, or tensors with the rows on their batch axis, padding included. */
    readonly rows: RowsOf<Row>,
    private readonly context: BatchContext,
    private readonly ending: BatchEnding,
  ) {}

  /** The key of its rows. */
  get key(): string {
    return this.context.key;
  }

  /** The number of rows without padding. */
  get size(): number {
    return this.context.size;
  }

  /** The number of padding rows. */
  get padding(): number {
    return this.context.padding;
  }

  /** The index of the partition that runs it. */
  get partition(): number {
    return this.context.partition;
  }

  /** The origin of its calls, in a serving with `queue.separateOrigins`. */
  get origin(): BatchContext['origin'] {
    return this.context.origin;
  }

  /** The hooks that callers asked for. */
  get hooks(): readonly string[] {
    return this.context.hooks;
  }

  /** Whether a caller waits for the row. */
  isWaiting(row: number): boolean {
    return this.context.isWaiting(row);
  }

  /**
   * Ends the batch with the output, or with the results of the function for its rows. Without one
   * result per row, its calls fail.
   */
  finish(
    output: ResultsOf<Result> | ((rows: RowsOf<Row>) => ResultsOf<Result>),
    metadata?: unknown,
  ): void {
    this.check();
    const result =
      typeof output === 'function' ? (output as (rows: RowsOf<Row>) => unknown)(this.rows) : output;
    this.leave();
    this.ending.resolve(withMetadata(result, metadata));
  }

  /** Ends the batch like a batch function that throws. */
  fail(error: unknown): void {
    this.check();
    this.leave();
    if (this.steps) {
      this.steps.fail(error);
    } else {
      this.ending.reject(error);
    }
  }

  /**
   * Ends the batch like a thread that dies: its calls fail with a PartitionLostError, unless the
   * serving is `idempotent` and runs it again. The partition runs no further batch, or with
   * `restarts` the next one.
   */
  crash({ restarts = false }: { readonly restarts?: boolean } = {}): void {
    this.check();
    const error = new PartitionLostError(
      `Partition ${this.partition} has crashed, as its script says`,
    );
    if (!restarts) {
      this.ending.lose(error);
    }
    this.fail(error);
  }

  /**
   * Emits a value of the hook to the calls that asked for it: a list with an entry per row, or
   * tensors with the rows on axis 0.
   */
  emit(hook: string, value: unknown): void {
    this.check();
    this.context.emit(hook, value);
  }

  /**
   * Yields a list with an entry per row, like a generator; `DONE` ends that row. The batch ends
   * when no caller waits any more.
   */
  step(values: readonly unknown[], metadata?: unknown): void {
    this.check();
    if (!this.steps) {
      this.steps = new Queue();
      this.ending.resolve(this.generate(this.steps));
    }
    this.steps.push(metadata === undefined ? values : withMetadata(values, metadata));
  }

  /** Ends the batch after its last step. */
  end(): void {
    this.check();
    if (!this.steps) {
      throw new ServingError(
        `The batch of ${this.size} rows has had no step; end it with finish, fail or crash`,
      );
    }
    this.leave();
    this.steps.end();
  }

  private async *generate(steps: Queue<unknown>): AsyncGenerator<unknown, void> {
    try {
      yield* steps;
    } finally {
      this.leave();
    }
  }

  private check(): void {
    if (!this.isHeld) {
      throw new ServingError(
        `The batch of ${this.size} rows of key "${this.key}" has ended already, or nobody waits ` +
          'for it any more',
      );
    }
  }

  private leave(): void {
    this.isHeld = false;
    this.ending.ended();
  }
}

/**
 * The rows of a batch as its function gets them: tensors stay tensors, plain values are in a list.
 */
export type RowsOf<Row> = unknown extends Row
  ? unknown[]
  : [Row] extends [Container]
    ? Row
    : Exclude<Row, Batch>[];

/** A possible return value of a batch function for callers with this result. */
export type ResultsOf<Result> = unknown extends Result
  ? BatchOutput
  : [Result] extends [Container]
    ? Result | readonly (Result | Error)[]
    : readonly (Result | Error)[];

/** A batch function with types; as a generator it yields any steps. */
export type TypedBatchFunction<Rows, Result> = (
  rows: Rows,
  batch: BatchContext,
) =>
  | ReturnType<BatchFunction<Rows, ResultsOf<Result>>>
  | AsyncGenerator<unknown, void>
  | Generator<unknown, void>;
