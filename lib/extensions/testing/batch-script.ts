import {
  type Batch,
  LocalServing,
  type Runner,
  type ServingOptions,
  type BatchContext,
  type Serving,
  type BatchEndEvent,
} from '../../index.js';
import {
  type Partition,
  type PartitionResult,
  type STEPPED,
  resolveDefinition,
  type Engine,
  resultOf,
  type BatchInfo,
  contextOf,
  type BatchListener,
} from '../../internal.js';
import { HeldBatch, type ResultsOf, type RowsOf } from './held-batch.js';
import { modelStandIn } from './stand-in.js';

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

  /** Takes only the types from the serving. */
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

  /** Resolves with the oldest batch that `next` hasn't returned yet. */
  async next(): Promise<HeldBatch<Row, Result>> {
    const batch = this.batches.find((held) => !this.taken.has(held));
    if (!batch) {
      return new Promise((resolve) => this.takers.push(resolve));
    }
    this.taken.add(batch);
    return batch;
  }

  /** Ends all held and later batches with the function's results. */
  release(run: (rows: RowsOf<Row>) => ResultsOf<Result>): void {
    this.released = run;
    this.batches.forEach((batch) => batch.finish(run));
  }

  /**
   * Creates a serving, not started, whose batches the script holds, with the definition's options
   * except the runner.
   *
   * @throws InvalidServingError for an invalid option
   */
  createServing<Input = Row | Batch, Output = Result>(
    options: ServingOptions<Input, Output> & { readonly model?: Runner },
  ): LocalServing<Input, Output> {
    const standIn = modelStandIn(options);
    // A definition needs a runner.
    const resolved = resolveDefinition(standIn);
    return new LocalServing<Input, Output>(resolved, standIn, scriptedEngine(this.hold));
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

/** Its partitions can be lost like a thread. */
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
 * A list that grows with each batch that ends from now on.
 *
 * @param source a serving, or the ServingService for all servings
 */
export function recordBatches(source: Pick<Serving, 'eventsOf'>): readonly BatchEndEvent[] {
  const batches: BatchEndEvent[] = [];
  source.eventsOf('batch:end').subscribe((batch) => batches.push(batch));
  return batches;
}
