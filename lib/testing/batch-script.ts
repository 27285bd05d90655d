import type { Batch } from '../batch/batch.js';
import type { BatchContext } from '../partitions/partition.js';
import { LocalServing } from '../serving/local-serving.js';
import { resolveDefinition } from '../serving/resolve-definition.js';
import type { ServingOptions } from '../serving/serving-definition.js';
import { HeldBatch } from './held-batch.js';
import type { ResultsOf, RowsOf } from './rows-of.js';
import { type Hold, scriptedEngine } from './scripted-engine.js';
import { modelStandIn } from './stand-in.js';

/**
 * In place of what runs a serving's batches: holds each of them until the test ends it.
 *
 * `Row` is what a row is, and `Result` what its caller gets.
 */
export class BatchScript<Row = unknown, Result = unknown> {
  private readonly held = new Set<HeldBatch<Row, Result>>();
  private readonly taken = new WeakSet<HeldBatch<Row, Result>>();
  private readonly takers: ((batch: HeldBatch<Row, Result>) => void)[] = [];
  private released: ((rows: RowsOf<Row>) => ResultsOf<Result>) | undefined;

  /** A script for the serving, of which it takes the types and nothing else. */
  static of<Row, Result>(_serving: ServingOptions<Row, Result>): BatchScript<Row, Result> {
    return new BatchScript();
  }

  /** The batches that run now, in the order in which they came. */
  get batches(): readonly HeldBatch<Row, Result>[] {
    return [...this.held];
  }

  /** The rows of these batches. */
  get rows(): readonly RowsOf<Row>[] {
    return this.batches.map(({ rows }) => rows);
  }

  /** The oldest batch that no `next` has given yet; waits until one comes. */
  async next(): Promise<HeldBatch<Row, Result>> {
    const batch = this.batches.find((held) => !this.taken.has(held));
    if (!batch) {
      return new Promise((resolve) => this.takers.push(resolve));
    }
    this.taken.add(batch);
    return batch;
  }

  /** Ends all batches that it holds, and every batch from now on as it comes, with what the function makes of their rows. */
  release(run: (rows: RowsOf<Row>) => ResultsOf<Result>): void {
    this.released = run;
    this.batches.forEach((batch) => batch.finish(run));
  }

  /**
   * A serving whose batches it holds, not started. Of a definition it takes all but what would run the batches.
   *
   * @throws InvalidServingError when an option is at fault
   */
  createServing<Input = Row | Batch, Output = Result>(options: ServingOptions<Input, Output>): LocalServing<Input, Output> {
    const standIn = modelStandIn(options);
    // A definition must say what runs its batches, and that these are held is not said by an option.
    const resolved = resolveDefinition({ ...standIn, useFactory: () => () => undefined });
    return new LocalServing<Input, Output>(resolved, standIn, scriptedEngine(this.hold));
  }

  private readonly hold: Hold = (rows, context, lose) => {
    const typed = rows as RowsOf<Row>;
    return this.released ? this.released(typed) : this.holdBatch(typed, context, lose);
  };

  private holdBatch(rows: RowsOf<Row>, context: BatchContext, lose: (error: Error) => void): Promise<unknown> {
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
