import { describe, expect, it } from '@jest/globals';
import * as fc from 'fast-check';
import { Batcher, type BatchOutcome, type BatchRecord, type Lane, type Row } from '../../../lib/batching/batcher.js';
import { ServingClosedError } from '../../../lib/errors.js';
import { NamedRequest, namesOf } from '../../fixtures/held-batcher.js';
import { nextTimer, timers, turn, useVirtualTime } from '../../fixtures/virtual-time.js';

describe('Batcher', () => {
  useVirtualTime();

  it('[4.1] to [4.6], [4.11], [5.5], [9.3] keeps every promise, whatever comes when and ends how', async () => {
    await fc.assert(
      fc.asyncProperty(scenario, async (options) => {
        expect(await new Play(options).broken()).toEqual([]);
      }),
    );
  });
});

const aCall = {
  lane: fc.nat({ max: 2 }),
  rows: fc.oneof({ weight: 4, arbitrary: fc.integer({ min: 1, max: 4 }) }, fc.integer({ min: 1, max: 100 })),
};

const scenario = fc.record({
  batchSize: fc.integer({ min: 1, max: 8 }),
  batchTimeout: fc.constantFrom(0, 1, 10),
  partitions: fc.integer({ min: 1, max: 3 }),
  prefetch: fc.constantFrom(0, 1),
  calls: fc.array(fc.record({ at: fc.nat({ max: 60 }), ...aCall }), { minLength: 1, maxLength: 25 }),
  /** Calls by those who are called themselves. */
  callbacks: fc.array(fc.record({ from: fc.constantFrom('batch', 'reply', 'observer'), ...aCall }), { maxLength: 12 }),
  /** How one batch after the other runs. */
  runs: fc.array(fc.record({ duration: fc.nat({ max: 12 }), fails: fc.boolean() }), { minLength: 1, maxLength: 9 }),
  closing: fc.option(fc.record({ at: fc.nat({ max: 60 }), abandons: fc.boolean() })),
});

type Scenario = typeof scenario extends fc.Arbitrary<infer T> ? T : never;
type NamedRow = Row<NamedRequest>;

/** One scenario, with an eye on what must hold at every moment of it. */
class Play {
  private readonly batcher: Batcher<NamedRequest>;
  private readonly callbacks: Scenario['callbacks'];
  private readonly lanes: readonly Lane[];
  /** Of each lane, the rows that were submitted and not dispatched. */
  private readonly queues: [NamedRow[], NamedRow[], NamedRow[]] = [[], [], []];
  /** Of each partition, the ends of the batches that it holds, of which it runs the first. */
  private readonly held: Promise<void>[][];
  private readonly promisesBroken: string[] = [];
  private calls = 0;
  private runs = 0;
  private closed = false;
  private ended = false;

  constructor(private readonly options: Scenario) {
    const { batchSize, batchTimeout, partitions, prefetch, callbacks } = options;
    this.callbacks = [...callbacks];
    this.lanes = this.queues.map(() => ({ limits: { batchSize, batchTimeout } }));
    this.held = Array.from({ length: partitions }, () => []);
    this.batcher = new Batcher<NamedRequest>({
      name: 'played',
      maxQueue: Infinity,
      slots: this.held.map(() => ({ prefetch })),
      dispatch: (rows, partition) => this.dispatch(rows, partition),
      observer: { batchStarted: () => undefined, batchEnded: (record) => this.observe(record) },
    });
  }

  /** Plays the scenario to its end; gives the promises that were broken. */
  async broken(): Promise<string[]> {
    const { calls, closing } = this.options;
    for (const { at, ...call } of calls) {
      setTimeout(() => this.call(call), at);
    }
    if (closing) {
      setTimeout(() => this.close(closing.abandons), closing.at);
    }
    for (await turn(); timers() > 0; await nextTimer()) {
      this.checkIdle();
    }
    this.close(false);
    await turn();
    this.check(this.queues.flat().length === 0, 'every row runs, or is abandoned');
    this.check(this.held.flat().length === 0, 'every batch ends');
    this.check(this.ended, 'it closes in the end');
    return this.promisesBroken;
  }

  private check(kept: boolean, promise: string): void {
    if (!kept) {
      this.promisesBroken.push(promise);
    }
  }

  private call({ lane, rows }: { readonly lane: number; readonly rows: number }): void {
    const request = new NamedRequest(`${this.calls++}.`, { lane: this.lanes[lane]!, size: rows });
    if (this.closed) {
      expect(() => this.batcher.submit(request)).toThrow(ServingClosedError);
    } else {
      this.queues[lane]!.push(...Array.from({ length: rows }, (_, index) => ({ request, index })));
      this.batcher.submit(request);
    }
  }

  private callBack(from: string): void {
    const index = this.callbacks.findIndex((callback) => callback.from === from);
    if (index >= 0) {
      this.call(this.callbacks.splice(index, 1)[0]!);
    }
  }

  private close(abandons: boolean): void {
    this.closed = true;
    void this.expectEnd(this.batcher.close());
    if (abandons) {
      this.batcher.abandon(new ServingClosedError());
      const abandoned = this.queues.flatMap((queue) => queue.splice(0));
      this.check(
        abandoned.every(({ request }) => request.error),
        'what is abandoned fails',
      );
    }
  }

  private async expectEnd(closing: Promise<void>): Promise<void> {
    await closing;
    this.ended = true;
    this.check(this.held.flat().length === 0, 'it closes when all batches have ended');
  }

  private async dispatch(rows: readonly NamedRow[], partition: number): Promise<BatchOutcome> {
    const { batchSize, prefetch, runs } = this.options;
    const held = this.held[partition]!;
    const queue = this.queues[this.lanes.indexOf(rows[0]!.request.lane)]!;
    this.check(namesOf(queue.splice(0, rows.length)) === namesOf(rows), 'each row runs once, in the order and lane it came in');
    this.check(rows.length <= batchSize, 'no batch is too large');
    this.check(held.length <= prefetch, 'a partition takes one batch, and so many ahead');
    this.check(held.length === 0 || rows.length === batchSize, 'only full batches are handed ahead');
    this.check(held.length === 0 || this.held.every(({ length }) => length > 0), 'idle partitions come first');
    const { duration, fails } = runs[this.runs++ % runs.length]!;
    const end = (held.at(-1) ?? Promise.resolve()).then(() => sleep(duration));
    held.push(end);
    this.callBack('batch');
    await end;
    void held.shift();
    this.callBack('reply');
    return fails ? { error: new Error('the batch failed') } : {};
  }

  private observe({ rows, reason, wait }: BatchRecord<NamedRequest>): void {
    const { batchSize, batchTimeout } = this.options;
    this.check((reason === 'full') === (rows.length === batchSize), 'a batch is full when it has its size');
    this.check(reason !== 'timeout' || (batchTimeout > 0 && wait >= batchTimeout), 'a window has its time');
    this.check(reason !== 'idle' || batchTimeout === 0, 'only windows without timeout close because a partition is idle');
    this.check(reason !== 'drain' || this.closed, 'only a closing batcher drains');
    this.callBack('observer');
  }

  private checkIdle(): void {
    const { batchSize, batchTimeout } = this.options;
    const isReady = (queue: NamedRow[]): boolean =>
      queue.length >= batchSize || queue.some(({ request }) => performance.now() - request.arrivedAt >= batchTimeout);
    const idle = this.held.some(({ length }) => length === 0);
    this.check(!idle || !this.queues.some(isReady), 'nothing that is ready waits beside an idle partition');
  }
}

const sleep = (ms: number): Promise<void> => new Promise((resolve) => setTimeout(resolve, ms));
