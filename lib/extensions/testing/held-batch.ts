import {
  PartitionLostError,
  ServingError,
  type Batch,
  type Container,
  type BatchContext,
  withMetadata,
  type BatchFunction,
} from '../../index.js';
import { Queue, type BatchOutput } from '../../internal.js';

export interface BatchEnding {
  readonly resolve: (result: unknown) => void;
  readonly reject: (error: unknown) => void;
  /** Ends the partition. */
  readonly lose: (error: Error) => void;
  readonly ended: () => unknown;
}

/** A batch that runs until the test calls `finish`, `fail`, `crash`, or, after steps, `end`. */
export class HeldBatch<Row = unknown, Result = unknown> {
  private steps: Queue<unknown> | undefined;
  private isHeld = true;

  constructor(
    /** Plain values, or tensors with the rows on their batch axis, with padding. */
    readonly rows: RowsOf<Row>,
    private readonly context: BatchContext,
    private readonly ending: BatchEnding,
  ) {}

  /** Its rows' key. */
  get key(): string {
    return this.context.key;
  }

  /** Rows without padding. */
  get size(): number {
    return this.context.size;
  }

  /** Padding rows. */
  get padding(): number {
    return this.context.padding;
  }

  /** Its partition's index. */
  get partition(): number {
    return this.context.partition;
  }

  /** The calls' origin, with `queue.separateOrigins`. */
  get origin(): BatchContext['origin'] {
    return this.context.origin;
  }

  /** Hooks that callers requested. */
  get hooks(): readonly string[] {
    return this.context.hooks;
  }

  /** True if a caller waits for the row. */
  isWaiting(row: number): boolean {
    return this.context.isWaiting(row);
  }

  /**
   * Ends the batch with results, or a function's results for its rows. Without one per row, its
   * calls fail.
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

  /** Fails like a batch function that throws. */
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
   * Ends the batch like a dying thread: its calls fail with a PartitionLostError, unless the
   * serving is `idempotent` and runs it again. Without `restarts`, its partition runs nothing more.
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

  /** Emits a hook's value: a list with an entry per row, or tensors with the rows on axis 0. */
  emit(hook: string, value: unknown): void {
    this.check();
    this.context.emit(hook, value);
  }

  /**
   * Yields a list with an entry per row; `DONE` ends that row. The batch ends when no caller waits.
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

/** A batch's rows: tensors stay tensors, plain values are a list. */
export type RowsOf<Row> = unknown extends Row
  ? unknown[]
  : [Row] extends [Container]
    ? Row
    : Exclude<Row, Batch>[];

/** A batch function's possible return values. */
export type ResultsOf<Result> = unknown extends Result
  ? BatchOutput
  : [Result] extends [Container]
    ? Result | readonly (Result | Error)[]
    : readonly (Result | Error)[];

/** A typed batch function; a generator may yield any steps. */
export type TypedBatchFunction<Rows, Result> = (
  rows: Rows,
  batch: BatchContext,
) =>
  | ReturnType<BatchFunction<Rows, ResultsOf<Result>>>
  | AsyncGenerator<unknown, void>
  | Generator<unknown, void>;
