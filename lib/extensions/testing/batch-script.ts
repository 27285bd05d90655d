import {
  type Batch,
  type BatchContext,
  type BatchEndEvent,
  type BatchFunction,
  type Container,
  LocalServing,
  PartitionLostError,
  type Runner,
  type Serving,
  ServingError,
  type ServingOptions,
  ServingUnavailableError,
  withMetadata,
} from '../../index.js';
import { Queue } from '../../doors/calls.js';
import {
  type BatchInfo,
  type BatchListener,
  type BatchOutput,
  contextOf,
  type Engine,
  type Partition,
  type PartitionResult,
  resultOf,
  type STEPPED,
} from '../../doors/engine.js';
import { features } from '../../doors/servings.js';
import { modelStandIn, requireMember } from './stand-in.js';

/**
 * Replaces a serving's partitions: holds each batch until the test ends it.
 *
 * `Row` is a row's type, `Result` its reply's.
 */
export class BatchScript<Row = unknown, Result = unknown> {
  private readonly held = new Set<HeldBatch<Row, Result>>();
  private readonly taken = new WeakSet<HeldBatch<Row, Result>>();
  private readonly takers: ((batch: HeldBatch<Row, Result>) => void)[] = [];
  private released: ((rows: RowsOf<Row>) => ResultsOf<Result>) | undefined;

  /** Takes only types from the serving. */
  static of<Row, Result>(_serving: ServingOptions<Row, Result>): BatchScript<Row, Result> {
    return new BatchScript();
  }

  /** Running batches, in starting order. */
  get batches(): readonly HeldBatch<Row, Result>[] {
    return [...this.held];
  }

  /** The rows of `batches`. */
  get rows(): readonly RowsOf<Row>[] {
    return this.batches.map(({ rows }) => rows);
  }

  /** Resolves with the oldest batch that `next` hasn't returned. */
  async next(): Promise<HeldBatch<Row, Result>> {
    const batch = this.batches.find((held) => !this.taken.has(held));
    if (!batch) {
      return new Promise((resolve) => this.takers.push(resolve));
    }
    this.taken.add(batch);
    return batch;
  }

  /** Ends all held and later batches with the function's results, and batches with steps as they are. */
  release(run: (rows: RowsOf<Row>) => ResultsOf<Result>): void {
    this.released = run;
    this.batches.forEach((batch) => (batch.hasSteps ? batch.end() : batch.finish(run)));
  }

  /**
   * Creates a serving, not started, with the definition's options except the runner. The script
   * holds its batches.
   *
   * @throws InvalidServingError for an invalid option
   */
  createServing<Input = Row | Batch, Output = Result>(
    options: ServingOptions<Input, Output> & { readonly model?: Runner },
  ): LocalServing<Input, Output> {
    requireMember(options, 'name', 'createServing', 'the options of a serving');
    const standIn = modelStandIn(options);
    // A definition needs a runner.
    const plan = {
      options: features.resolve(standIn),
      model: {},
      engine: scriptedEngine(this.hold),
    };
    return new LocalServing<Input, Output>(plan, standIn, features.partsOf(standIn));
  }

  private readonly hold: Hold = (rows, context, lose) => {
    const typed = rows as RowsOf<Row>;
    return this.released ? this.released(typed) : this.holdBatch(typed, context, lose);
  };

  private holdBatch(
    rows: RowsOf<Row>,
    context: BatchContext,
    lose: (error: Error) => void,
  ): Promise<unknown> {
    return new Promise((resolve, reject) => {
      const ended = (): unknown => this.held.delete(batch);
      const batch = new HeldBatch<Row, Result>(rows, context, { resolve, reject, lose, ended });
      this.held.add(batch);
      const take = this.takers.shift();
      if (take) {
        this.taken.add(batch);
        take(batch);
      }
    });
  }
}

/** `lose` ends the partition. */
type Hold = (rows: unknown, context: BatchContext, lose: (error: Error) => void) => unknown;

/** Makes partitions that can be lost like a thread. */
function scriptedEngine(hold: Hold): Engine {
  return async (_kind, options) => ({ partitions: options.map(() => new ScriptedPartition(hold)) });
}

class ScriptedPartition implements Partition {
  readonly prefetch = 0;
  lost?: Error;

  constructor(private readonly hold: Hold) {}

  async run(
    batch: Batch,
    info: BatchInfo,
    listener: BatchListener,
  ): Promise<PartitionResult | typeof STEPPED> {
    if (this.lost) {
      throw this.lost;
    }
    const result = this.hold(
      batch.consume(),
      contextOf(info, listener),
      (error) => (this.lost = error),
    );
    return resultOf(result, info.size, listener);
  }

  async close(): Promise<void> {}
}

/**
 * List that grows with each batch that ends from now on.
 *
 * @param source a serving, or the ServingService for all
 * @throws InvalidServingError for another value
 */
export function recordBatches(source: Pick<Serving, 'eventsOf'>): readonly BatchEndEvent[] {
  requireMember(source, 'eventsOf', 'recordBatches', 'a serving, or the ServingService');
  const batches: BatchEndEvent[] = [];
  source.eventsOf('batch:end').subscribe((batch) => batches.push(batch));
  return batches;
}

/** Seconds between two starts of a real partition that has failed too often. */
const RETRY_AFTER = 30;

export interface BatchEnding {
  readonly resolve: (result: unknown) => void;
  readonly reject: (error: unknown) => void;
  /** Ends the partition. */
  readonly lose: (error: Error) => void;
  readonly ended: () => unknown;
}

/** Batch that runs until the test calls `finish`, `fail`, `crash`, or, after steps, `end`. */
export class HeldBatch<Row = unknown, Result = unknown> {
  private steps: Queue<unknown> | undefined;
  private isHeld = true;

  constructor(
    /** Plain values, or tensors with the rows on their batch axis, with padding. */
    readonly rows: RowsOf<Row>,
    private readonly context: BatchContext,
    private readonly ending: BatchEnding,
  ) {}

  /** Key of its rows. */
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

  /** Index of its partition. */
  get partition(): number {
    return this.context.partition;
  }

  /** Origin of its calls, with `queue.separateOrigins`. */
  get origin(): BatchContext['origin'] {
    return this.context.origin;
  }

  /** Hooks that callers requested. */
  get hooks(): readonly string[] {
    return this.context.hooks;
  }

  /** @internal */
  get hasSteps(): boolean {
    return this.steps !== undefined;
  }

  /** True if a caller waits for the row. */
  isWaiting(row: number): boolean {
    return this.context.isWaiting(row);
  }

  /**
   * Ends the batch with results, or a function's results for its rows. Without a result per row,
   * its calls fail.
   *
   * @throws ServingError for a batch with steps, which `end` ends
   */
  finish(
    output: ResultsOf<Result> | ((rows: RowsOf<Row>) => ResultsOf<Result>),
    metadata?: unknown,
  ): void {
    this.check();
    if (this.hasSteps) {
      throw new ServingError(
        `The batch of ${this.size} rows has had steps; end it with end, fail or crash`,
      );
    }
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
   * serving is `idempotent` and reruns it. Without `restarts`, its partition runs nothing more, and
   * later calls that no other partition takes fail with a ServingUnavailableError.
   */
  crash({ restarts = false }: { readonly restarts?: boolean } = {}): void {
    this.check();
    const cause = new PartitionLostError(
      `Partition ${this.partition} has crashed, as its script says`,
    );
    if (!restarts) {
      const refusal = `${cause.message}, and is not restarted`;
      this.ending.lose(new ServingUnavailableError(refusal, { cause, retryAfter: RETRY_AFTER }));
    }
    this.fail(cause);
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
