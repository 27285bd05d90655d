import { describe, expect, it } from '@jest/globals';
import { Batcher } from '../../../lib/core/batching/batcher.js';
import { type Part, sizeOf } from '../../../lib/core/batching/queued-request.js';
import { timing } from '../../../lib/features/deadlines/deadlines.js';
import { isServingError } from 'nestjs-serving';
import { NamedRequest } from '../../fixtures/batching/held-batcher.js';
import { randomNumbers } from '../../fixtures/batching/random-numbers.js';
import { later, useVirtualTime } from '../../fixtures/async/virtual-time.js';

const lane = { limits: { batchSize: 32, batchTimeout: 0 } };
const timeOf = (rows: number): number => 6 + 0.6 * rows;
/** The number of rows that a partition runs per millisecond. */
const pace = lane.limits.batchSize / timeOf(lane.limits.batchSize);

describe('Batcher: overload', () => {
  useVirtualTime();

  it.each([
    { times: 2, patience: 500 },
    { times: 10, patience: 500 },
    { times: 10, patience: 100 },
    { times: 10, patience: 500, partitions: 3 },
    { times: 10, patience: 500, slowness: 1.5 },
  ])(
    '[7.5] The batcher answers 95 percent of its capacity in time under $times times its load and a patience of $patience ms',
    async (options) => {
      const { good, late, refused, capacity } = await new Rush(options).play();

      expect(good / capacity).toBeGreaterThan(0.95);
      // Where run times jump every half second, calls that were admitted in the fast one are late.
      expect(late / capacity).toBeLessThan(options.slowness ? 0.25 : 0.15);
      expect(refused).toBeGreaterThan(capacity * (options.times - 1.3));
    },
  );
});

interface RushOptions {
  /** The load in multiples of the capacity. */
  readonly times: number;
  /** The milliseconds until the deadline of a call. */
  readonly patience: number;
  readonly partitions?: number;
  /** The factor by which batches are slower in every other half second. */
  readonly slowness?: number;
}

/**
 * Calls of a Poisson process, independent of their outcome, for three seconds of which the first
 * does not count.
 */
class Rush {
  private readonly random = randomNumbers(7);
  private readonly ends: Promise<void>[];
  private readonly batcher: Batcher<NamedRequest>;
  private readonly from = performance.now() + 1000;
  private readonly until = this.from + 2000;
  private readonly slowness: number;
  private good = 0;
  private late = 0;
  private refused = 0;

  constructor(private readonly options: RushOptions) {
    const { partitions = 1, slowness = 1 } = options;
    this.slowness = slowness;
    this.ends = Array.from({ length: partitions }, () => Promise.resolve());
    this.batcher = new Batcher({
      name: 'rush',
      policies: [timing],
      maxRows: 10_000,
      order: { ageing: 1000, weights: new Map() },
      targets: this.ends.map(() => ({ prefetch: 1 })),
      runs: {
        nextBatch: () => 0,
        batchStarted() {},
        batchEnded() {},
        dispatch: ({ parts }, partition) => this.run(parts, partition),
      },
    });
  }

  async play(): Promise<{ good: number; late: number; refused: number; capacity: number }> {
    const { times } = this.options;
    const rate = pace * this.ends.length * times;
    for (let arrival = performance.now(); performance.now() < this.until; await later(1)) {
      for (; arrival <= performance.now(); arrival -= Math.log(1 - this.random()) / rate) {
        this.call();
      }
    }
    await later(this.options.patience);
    await this.batcher.close();
    const { good, late, refused } = this;
    return {
      good,
      late,
      refused,
      capacity: pace * this.ends.length * 2000 * ((1 + 1 / this.slowness) / 2),
    };
  }

  private call(): void {
    const { patience } = this.options;
    const counts = this.isCounted();
    const request = new NamedRequest('a', { lane, deadline: performance.now() + patience });
    try {
      this.batcher.submit(request);
    } catch (error) {
      this.refused += counts && isServingError(error) ? 1 : 0;
      return;
    }
    setTimeout(() => {
      if (!request.isOver) {
        request.expire();
      }
      this.late += counts && request.error ? 1 : 0;
    }, patience);
  }

  private async run(parts: readonly Part<NamedRequest>[], partition: number): Promise<object> {
    const slowness = performance.now() % 1000 < 500 ? this.slowness : 1;
    const time = timeOf(sizeOf(parts)) * (0.9 + 0.2 * this.random()) * slowness;
    this.ends[partition] = this.ends[partition]!.then(
      () => new Promise((resolve) => setTimeout(resolve, time)),
    );
    await this.ends[partition];
    for (const { request } of parts.filter((part) => !part.request.isOver)) {
      request.isOver = true;
      this.good += this.isCounted() ? 1 : 0;
    }
    return {};
  }

  private isCounted(): boolean {
    return performance.now() >= this.from && performance.now() < this.until;
  }
}
