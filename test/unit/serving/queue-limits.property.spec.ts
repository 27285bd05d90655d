import { describe, expect, it } from '@jest/globals';
import * as fc from 'fast-check';
import { Batch, createServing, type LocalServing } from 'nestjs-serving';
import { useVirtualTime, later, runTimers, turn } from '../../fixtures/async/virtual-time.js';
import { useServings } from '../../fixtures/serving/use-servings.js';

interface Row {
  readonly call: number;
  /** Counted against `queue.maxCost`. */
  readonly cost: number;
  /** Counted against `batchSize.cost.most`. */
  readonly length: number;
}

const call = fc.record({
  rows: fc.array(fc.record({ cost: fc.nat(12), length: fc.integer({ min: 1, max: 10 }) }), {
    minLength: 1,
    maxLength: 4,
  }),
  priority: fc.constantFrom(0, 0, 1, -1),
  tenant: fc.constantFrom('', '', 'a', 'b'),
  timeout: fc.constantFrom(undefined, 3),
});
type Drawn<T> = T extends fc.Arbitrary<infer Value> ? Value : never;

const step = fc.oneof(
  { weight: 6, arbitrary: call },
  { weight: 2, arbitrary: fc.constant('turn' as const) },
  { weight: 1, arbitrary: fc.constant('end' as const) },
  { weight: 1, arbitrary: fc.constant('fail' as const) },
  { weight: 1, arbitrary: fc.constant('wait' as const) },
);

const plan = fc.record({
  maxRows: fc.integer({ min: 6, max: 12 }),
  maxCost: fc.option(fc.integer({ min: 12, max: 30 }), { nil: undefined }),
  batchRows: fc.integer({ min: 1, max: 6 }),
  batchTimeout: fc.constantFrom(0, 0, 2),
  budget: fc.constantFrom(undefined, { padded: false }, { padded: true }),
  partitions: fc.integer({ min: 1, max: 3 }),
  steps: fc.array(step, { minLength: 10, maxLength: 60 }),
});

/** A serving whose batches wait for the test, which follows where each row is. */
class Watched {
  readonly serving: LocalServing;
  /** Rows that a batch has had. */
  private readonly begun = new Set<Row>();
  private readonly calls: { readonly rows: Row[]; isOver: boolean }[] = [];
  private readonly gates: ((error?: Error) => void)[] = [];
  /** Rows that run again count as queued, beyond the limit if they must. */
  private hasFailed = false;
  readonly broken: string[] = [];

  constructor(private readonly options: Drawn<typeof plan>) {
    const { maxRows, maxCost, batchRows, batchTimeout, budget, partitions } = options;
    this.serving = createServing({
      name: 'watched',
      batchSize: budget
        ? {
            rows: batchRows,
            cost: { of: (row) => (row as Row).length, most: 10, padded: budget.padded },
          }
        : batchRows,
      batchTimeout,
      recovery: { idempotent: true },
      queue: {
        maxRows,
        ...(maxCost !== undefined && {
          maxCost,
          cost: (batch: Batch) => sumOf(batch.consume() as Row[]),
        }),
      },
      partitions,
      model: {
        useFactory: () => async (rows: Row[]) => {
          rows.forEach((row) => this.begun.add(row));
          await new Promise<void>((end, fail) =>
            this.gates.push((error) => (error ? fail(error) : end())),
          );
          return rows;
        },
      },
    });
  }

  async play(): Promise<readonly string[]> {
    const { serving } = this;
    await serving.start();
    for (const each of this.options.steps) {
      if (each === 'turn') {
        await turn();
        this.check();
      } else if (each === 'wait') {
        await later(2);
        this.check();
      } else if (each === 'end' || each === 'fail') {
        this.hasFailed ||= each === 'fail';
        this.gates.shift()?.(each === 'fail' ? new Error('a faulty row') : undefined);
      } else {
        this.call(each);
      }
      if (serving.queued > this.options.maxRows && !this.hasFailed) {
        this.broken.push(`${serving.queued} rows are queued`);
      }
    }
    const closed = serving.close();
    for (let i = 0; i < 200; i++) {
      this.gates.splice(0).forEach((end) => end());
      await turn();
    }
    await runTimers();
    await closed;
    return this.broken;
  }

  private call({ rows, priority, tenant, timeout }: Drawn<typeof call>): void {
    const own = rows.map((row) => ({ ...row, call: this.calls.length }));
    const made = { rows: own, isOver: false };
    this.calls.push(made);
    const over = (): void => {
      made.isOver = true;
    };
    this.serving.batchedRun(Batch.stack(own), { priority, tenant, timeout }).then(over, over);
  }

  /** When a turn has ended, each row has either begun, or waits and counts. */
  private check(): void {
    const { maxRows, maxCost = Infinity } = this.options;
    const waiting = this.calls.filter(({ isOver }) => !isOver).flatMap(({ rows }) => rows);
    const queued = waiting.filter((row) => !this.begun.has(row));
    if (queued.length > maxRows) {
      this.broken.push(`${queued.length} rows wait`);
    }
    if (sumOf(queued) > maxCost) {
      this.broken.push(`rows that cost ${sumOf(queued)} wait`);
    }
  }
}

const sumOf = (rows: readonly Row[]): number => rows.reduce((sum, { cost }) => sum + cost, 0);

describe('The limits of a queue', () => {
  useVirtualTime();
  useServings();

  it('[FR10] [FR11] In no mix of calls, costs, budgets, priorities, tenants, partitions, failures and turns does the queue hold more than its limits', async () => {
    await fc.assert(
      fc.asyncProperty(plan, async (options) => {
        expect(await new Watched(options).play()).toEqual([]);
      }),
      { numRuns: 150 },
    );
  });
});
