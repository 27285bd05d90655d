import { describe, expect, it } from '@jest/globals';
import type { Budget } from '../../../lib/core/batching/fill.js';
import { busyBatcher, runAll } from '../../fixtures/batching/busy-batcher.js';
import {
  HeldBatcher,
  type HeldBatcherOptions,
  type NamedRequest,
} from '../../fixtures/batching/held-batcher.js';
import { later, useVirtualTime } from '../../fixtures/async/virtual-time.js';

const sum: Budget = { most: 10, padded: false, overtaking: 0 };
const padded: Budget = { most: 12, padded: true, overtaking: 0 };

const busy = (budget: Budget, options: HeldBatcherOptions = {}): Promise<HeldBatcher> =>
  busyBatcher({ batchSize: 8, budget, ...options });

/** Submits requests of one row, each with its letter and cost. */
function ask(batcher: HeldBatcher, costs: Readonly<Record<string, number>>): NamedRequest[] {
  return Object.entries(costs).map(([name, cost]) => batcher.ask(name, { costs: [cost] }));
}

describe('Batcher: budgets', () => {
  useVirtualTime();

  it('[14.2] A batch holds rows up to the sum of their costs, in the order of arrival', async () => {
    const batcher = await busy(sum);
    ask(batcher, { a: 4, b: 6, c: 3, d: 3, e: 3, f: 2 });

    expect(await runAll(batcher)).toEqual(['a0 b0', 'c0 d0 e0', 'f0']);
    expect(batcher.started.slice(1).map(({ reason }) => reason)).toEqual(['cost', 'cost', 'idle']);
  });

  it('[14.2] The cost of a padded batch is the number of its rows times the largest of their costs', async () => {
    const batcher = await busy(padded);
    ask(batcher, { a: 2, b: 3, c: 4, d: 5, e: 12, f: 1 });

    expect(await runAll(batcher)).toEqual(['a0 b0 c0', 'd0', 'e0', 'f0']);
  });

  it('[14.2] Rows that padding leaves no room for run in a batch of their own, with the reason of the first', async () => {
    const batcher = await busy(padded);
    ask(batcher, { a: 4, b: 4, c: 1, d: 1, e: 1, f: 1 });

    expect(await runAll(batcher)).toEqual(['a0 b0 c0', 'd0 e0 f0']);
    expect(batcher.started.slice(1).map(({ reason }) => reason)).toEqual(['cost', 'idle']);
  });

  it('[14.2] The batch size stays the largest number of rows, whatever they cost', async () => {
    const batcher = await busy(sum, { batchSize: 2 });
    ask(batcher, { a: 1, b: 1, c: 1 });

    expect(await runAll(batcher)).toEqual(['a0 b0', 'c0']);
    expect(batcher.started[1]).toMatchObject({ reason: 'full', batchSize: 2 });
  });

  it('[14.2] A request is split where its rows do not fit, and each row counts with its own cost', async () => {
    const batcher = await busy(sum);
    batcher.ask('a', { costs: [6, 4, 5, 5, 1] });
    ask(batcher, { b: 9 });

    expect(await runAll(batcher)).toEqual(['a0 a1', 'a2 a3', 'a4 b0']);
  });

  it('[14.2] Neighbouring rows of one call are one part of a batch', async () => {
    const batcher = await busy(sum);
    const call = batcher.ask('a', { costs: [1, 2, 3], tenant: 'one' });
    const other = batcher.ask('b', { costs: [1, 1], tenant: 'two' });
    await runAll(batcher);

    expect(batcher.started[1]!.parts).toEqual([
      { request: call, offset: 0, count: 3 },
      { request: other, offset: 0, count: 2 },
    ]);
  });

  it('[14.2] A window closes when its budget is spent, or before a row that does not fit', async () => {
    const batcher = new HeldBatcher({ batchSize: 8, batchTimeout: 50, partitions: 4, budget: sum });
    ask(batcher, { a: 4, b: 6 });
    await later();
    expect(batcher.running).toEqual(['0: a0 b0']);

    ask(batcher, { c: 9, d: 2 });
    await later();
    expect(batcher.running).toEqual(['0: a0 b0', '1: c0']);
    expect(batcher.started.map(({ reason }) => reason)).toEqual(['cost', 'cost']);

    await later(49);
    expect(batcher.running).toHaveLength(2);
    await later(1);
    expect(batcher.running).toEqual(['0: a0 b0', '1: c0', '2: d0']);
    expect(batcher.started[2]).toMatchObject({ reason: 'timeout', wait: 50 });
    await runAll(batcher);
  });

  it('[14.2] A padded window closes when no row of any cost fits', async () => {
    const batcher = new HeldBatcher({ batchSize: 8, batchTimeout: 50, budget: padded });
    ask(batcher, { a: 1, b: 5 });
    await later();

    expect(batcher.running).toEqual(['0: a0 b0']);
    await runAll(batcher);
  });

  it('[14.2] A row that leaves an open window gives its cost to later rows', async () => {
    const batcher = new HeldBatcher({ batchSize: 8, batchTimeout: 50, budget: sum });
    const [a] = ask(batcher, { a: 6, b: 3 });
    a!.leave();
    ask(batcher, { c: 6 });
    await later(49);
    expect(batcher.running).toEqual([]);

    await later(1);
    expect(batcher.running).toEqual(['0: b0 c0']);
    await runAll(batcher);
  });

  it('[14.2] A closed window that waits for a partition takes more rows while they fit', async () => {
    const batcher = await busy(sum, { batchTimeout: 10 });
    ask(batcher, { a: 4 });
    await later(10);
    ask(batcher, { b: 6, c: 1 });
    batcher.finishBatch();
    await later();
    expect(batcher.running).toEqual(['0: a0 b0']);

    batcher.finishBatch();
    await later(9);
    expect(batcher.running).toEqual([]);
    await later(1);
    expect(batcher.running).toEqual(['0: c0']);
    await runAll(batcher);
  });

  it('[14.2] A request that must run whole waits in front until a batch has room for all of it', async () => {
    const batcher = await busy(sum);
    ask(batcher, { a: 5 });
    batcher.ask('w', { costs: [3, 3], whole: true });
    ask(batcher, { b: 4, c: 1 });

    expect(await runAll(batcher)).toEqual(['a0', 'w0 w1 b0', 'c0']);
  });

  it('[14.2] A row that does not fit stays in front of the rows of its tenant, and other tenants fill the batch', async () => {
    const batcher = await busy(sum);
    batcher.ask('a', { costs: [6, 6, 1], tenant: 'one' });
    batcher.ask('b', { costs: [2, 2, 2], tenant: 'two' });

    expect(await runAll(batcher)).toEqual(['a0 b0 b1', 'a1 a2 b2']);
  });

  it('[14.2] Tenants share by cost, and not by the number of rows', async () => {
    const batcher = await busy(sum);
    batcher.ask('a', { costs: [5, 5, 5, 5], tenant: 'dear' });
    batcher.ask('b', { costs: [1, 1, 1, 1, 1, 1, 1, 1, 1, 1], tenant: 'cheap' });

    expect(await runAll(batcher)).toEqual(['a0 b0 b1 b2 b3 b4', 'a1 b5 b6 b7 b8 b9', 'a2 a3']);
  });

  it('[14.2] [7.2] Late and cancelled rows take no part of a budget', async () => {
    const batcher = await busy(sum);
    const [a, b] = ask(batcher, { a: 9, b: 9 });
    const late = batcher.ask('late', { costs: [9], deadline: performance.now() + 5 });
    ask(batcher, { c: 5, d: 5 });
    a!.leave();
    b!.leave();
    await later(5);

    expect(await runAll(batcher)).toEqual(['c0 d0']);
    expect([late.isOver, batcher.depth]).toEqual([true, 0]);
  });

  it('[14.2] Rows that run again share a batch only with those of their first batch', async () => {
    const batcher = await busy(sum);
    const [a, b] = ask(batcher, { a: 5, b: 5 });
    batcher.finishBatch();
    await later();
    ask(batcher, { c: 1 });
    const retries = [a!, b!].map((request) => ({ parts: [{ request, offset: 0, count: 1 }] }));
    batcher.finishBatch(0, { error: new Error('failed'), retries });

    expect(await runAll(batcher)).toEqual(['a0', 'b0', 'c0']);
  });

  it('[14.2] A batch that its cost has filled may be handed ahead, and one that can grow may not', async () => {
    const batcher = await busy(sum, { prefetch: 1 });
    ask(batcher, { a: 9 });
    await later();
    expect(batcher.running).toHaveLength(1);

    ask(batcher, { b: 5 });
    await later();
    expect(batcher.running).toEqual(['0: busy0', '0: a0']);
    expect(await runAll(batcher)).toEqual(['a0', 'b0']);
  });

  it('[14.2] Many rows that each fill a batch run one after the other', async () => {
    const batcher = await busy(sum, { maxRows: 2000 });
    batcher.ask('a', { costs: Array.from({ length: 1000 }, () => 10) });

    expect(await runAll(batcher)).toEqual(Array.from({ length: 1000 }, (_, row) => `a${row}`));
  });
});
