import { describe, expect, it } from '@jest/globals';
import type { Budget } from '../../../lib/core/batching/fill.js';
import { busyBatcher, runAll } from '../../fixtures/batching/busy-batcher.js';
import type { HeldBatcher, HeldBatcherOptions } from '../../fixtures/batching/held-batcher.js';
import { NamedQueue } from '../../fixtures/batching/named-queue.js';
import { useVirtualTime } from '../../fixtures/async/virtual-time.js';

const budgetOf = (overtaking: number): Budget => ({ most: 100, padded: true, overtaking });
const busy = (overtaking: number, options: HeldBatcherOptions = {}): Promise<HeldBatcher> =>
  busyBatcher({ batchSize: 8, budget: budgetOf(overtaking), ...options });

describe('Batcher: similar rows', () => {
  useVirtualTime();

  it('[14.3] Rows of similar cost share a batch with the row that is next', async () => {
    const batcher = await busy(5);
    batcher.ask('a', { costs: [10, 90, 10, 80, 10, 10, 85] });

    expect(await runAll(batcher)).toEqual(['a0 a2 a4 a5', 'a1', 'a3', 'a6']);
  });

  it('[14.2] [14.3] Batches form as in the picture of the manual', async () => {
    const [inOrder, similar] = await Promise.all(
      [0, 16].map((overtaking) =>
        busy(overtaking, { budget: { ...budgetOf(overtaking), most: 24 } }),
      ),
    );
    for (const batcher of [inOrder!, similar!]) {
      batcher.ask('a', { costs: [3, 12, 3, 3, 12, 3] });
    }

    expect(await runAll(inOrder!)).toEqual(['a0 a1', 'a2 a3', 'a4 a5']);
    expect(await runAll(similar!)).toEqual(['a0 a2 a3 a5', 'a1 a4']);
  });

  it('[14.3] A row that would mostly be padding waits for a batch of its like, though there is room', async () => {
    const batcher = await busy(5);
    batcher.ask('a', { costs: [30, 5, 29, 5] });

    expect(await runAll(batcher)).toEqual(['a0 a2', 'a1 a3']);
  });

  it('[14.3] The time of a batch with a deadline is estimated from the rows that it will have', () => {
    const queue = new NamedQueue(1000, undefined, budgetOf(5));
    queue.lane('texts', 8);
    for (const cost of [30, 5, 29, 5]) {
      queue.addClosed('texts', [queue.part('texts', 't', { costs: [cost], deadline: 1000 })]);
    }
    const expected: number[][] = [];
    const endOf = (_: unknown, rows: number, cost?: number): number => (
      expected.push([rows, Math.round(cost! / 10)]),
      0
    );

    expect(queue.take(0, endOf).parts).toHaveLength(2);
    expect(queue.take(0, endOf).parts).toHaveLength(2);
    expect(expected).toEqual([
      [2, 6],
      [2, 1],
    ]);
  });

  it('[14.3] Rows that are chosen from one call keep their places in it', async () => {
    const batcher = await busy(5);
    const call = batcher.ask('a', { costs: [10, 90, 10, 90, 10] });
    await runAll(batcher);

    expect(batcher.started[1]!.parts).toEqual([
      { request: call, offset: 0, count: 1 },
      { request: call, offset: 2, count: 1 },
      { request: call, offset: 4, count: 1 },
    ]);
  });

  it('[14.3] A row that was passed often enough is passed by no further batch', async () => {
    const [once, twice] = await Promise.all([busy(1), busy(2)]);
    for (const batcher of [once, twice]) {
      batcher.ask('a', { costs: [45, 10, 90] });
      batcher.ask('b', { costs: [45, 10, 10] });
    }

    // The first batch passes a1 and a2; the second one may not pass a2 again.
    expect(await runAll(once)).toEqual(['a0 b0', 'a1', 'a2', 'b1 b2']);
    expect(await runAll(twice)).toEqual(['a0 b0', 'a1 b1 b2', 'a2']);
  });

  it('[14.3] Rows of other tenants and of a lower priority fill a batch if they add no padding', async () => {
    const batcher = await busy(5);
    batcher.ask('a', { costs: [20, 90], tenant: 'one' });
    batcher.ask('b', { costs: [90, 19], tenant: 'two' });
    batcher.ask('c', { costs: [90, 18], priority: -1 });

    expect((await runAll(batcher))[0]).toBe('a0 b1 c1');
  });

  it('[14.3] Tenants share by cost, also where rows are chosen by their cost', async () => {
    const batcher = await busy(50, { batchSize: 4 });
    batcher.ask('a', { costs: Array.from({ length: 40 }, () => 10), tenant: 'many' });
    batcher.ask('b', { costs: Array.from({ length: 6 }, () => 10), tenant: 'few' });

    expect((await runAll(batcher)).slice(0, 3)).toEqual([
      'a0 a1 b0 b1',
      'a2 a3 b2 b3',
      'a4 a5 b4 b5',
    ]);
  });

  it('[14.3] Mixed lengths run at twice the rate of batches in the order of arrival, at no higher p99', () => {
    const plain = simulate();
    const similar = simulate({ most: 512, padded: true, overtaking: 32 });

    expect(similar.rate / plain.rate).toBeGreaterThan(2);
    expect(similar.p99).toBeLessThan(plain.p99);
    expect(similar.padding).toBeLessThan(0.11);
  });
});

/**
 * A text encoder on the CPU: 1 ms for a batch and 77 µs for each padded token, with 64 texts of
 * log-normal length in the queue at any time.
 */
function simulate(budget?: Budget): { rate: number; p99: number; padding: number } {
  const queue = new NamedQueue(1000, undefined, budget);
  const lengths = logNormal(20, 0.9);
  let [now, rows, padded, tokens] = [0, 0, 0, 0];
  const latencies: number[] = [];
  const add = (): void => {
    const part = queue.part('texts', 't', { now, costs: [lengths()] });
    if (queue.roomFor(part.request, 0) > 0) {
      queue.extend(part, now);
    } else {
      queue.addClosed('texts', [part], 'idle', now);
    }
  };
  queue.lane('texts', 32);
  Array.from({ length: 64 }, add);
  while (rows < 5000) {
    queue.next(now);
    const requests = queue.take(now).parts.map(({ request }) => request);
    const costs = requests.map(({ rowCosts }) => rowCosts![0]!);
    const size = Math.max(...costs) * costs.length;
    now += 1 + 0.077 * size;
    rows += costs.length;
    padded += size;
    tokens += costs.reduce((sum, cost) => sum + cost, 0);
    requests.forEach(({ arrivedAt }) => latencies.push(now - arrivedAt));
    requests.forEach(add);
  }
  latencies.sort((a, b) => a - b);
  return {
    rate: rows / now,
    p99: latencies[Math.floor(latencies.length * 0.99)]!,
    padding: 1 - tokens / padded,
  };
}

/** Whole numbers from 3 to 512, always the same ones. */
function logNormal(median: number, sigma: number): () => number {
  let seed = 1;
  const random = (): number => {
    seed = (seed * 1664525 + 1013904223) % 2 ** 32;
    return seed / 2 ** 32;
  };
  return () => {
    const normal = Math.sqrt(-2 * Math.log(1 - random())) * Math.cos(2 * Math.PI * random());
    return Math.max(3, Math.min(512, Math.round(median * Math.exp(sigma * normal))));
  };
}
