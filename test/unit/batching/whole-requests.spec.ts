import { describe, expect, it } from '@jest/globals';
import { HeldBatcher } from '../../fixtures/batching/held-batcher.js';
import { busyBatcher } from '../../fixtures/batching/busy-batcher.js';
import { later, runTimers, useVirtualTime } from '../../fixtures/async/virtual-time.js';

/** Letters in capitals are requests whose rows must run in one batch. */
describe('Batcher: requests that must run in one batch', () => {
  useVirtualTime();

  it.each([0, 10])(
    '[8.3] A whole request that fits joins the open window, with a timeout of %s',
    async (batchTimeout) => {
      const batcher = new HeldBatcher({ batchSize: 5, batchTimeout });

      batcher.call('a', 2);
      batcher.callWhole('B', 3);

      expect(await runAll(batcher)).toEqual(['full: a0 a1 B0 B1 B2']);
    },
  );

  it('[8.3] A whole request that fits joins the waiting window', async () => {
    const batcher = await busyBatcher({ batchSize: 5, batchTimeout: 10 });

    batcher.call('a', 2);
    await later(10);
    batcher.callWhole('B', 2);
    batcher.call('c', 1);

    expect(await runAll(batcher)).toEqual(['full: a0 a1 B0 B1 c0']);
  });

  it('[8.3] [4.2] A whole request that exactly fills the waiting window does not wait for a window of its own', async () => {
    const batcher = await busyBatcher({ batchSize: 5, batchTimeout: 10 });
    batcher.call('a', 2);
    await later(10);
    batcher.callWhole('B', 3);

    batcher.finishBatch();
    await later();

    expect(batcher.running).toEqual(['0: a0 a1 B0 B1 B2']);
    await runAll(batcher);
  });

  it('[8.3] A whole request that does not fit flushes the open window and starts the next one', async () => {
    const batcher = new HeldBatcher({ batchSize: 5, batchTimeout: 10 });

    batcher.call('a', 3);
    batcher.callWhole('B', 3);
    await later();

    expect(batcher.running).toEqual(['0: a0 a1 a2']);
    expect(await runAll(batcher)).toEqual(['flush: a0 a1 a2', 'timeout: B0 B1 B2']);
  });

  it('[8.3] A whole request that does not fit flushes the waiting window', async () => {
    const batcher = await busyBatcher({ batchSize: 5, batchTimeout: 10 });

    batcher.call('a', 3);
    await later(10);
    batcher.callWhole('B', 3);

    expect(await runAll(batcher)).toEqual(['flush: a0 a1 a2', 'timeout: B0 B1 B2']);
  });

  it.each([0, 10])(
    '[8.3] [4.6] Later rows do not overtake a whole request into the window that it flushed, with a timeout of %s',
    async (batchTimeout) => {
      const batcher = await busyBatcher({ batchSize: 5, batchTimeout });

      batcher.call('a', 3);
      await later(batchTimeout);
      batcher.callWhole('B', 3);
      batcher.call('c', 1);
      batcher.call('d', 2);

      expect(await runAll(batcher)).toEqual([
        'flush: a0 a1 a2',
        'full: B0 B1 B2 c0 d0',
        expect.stringContaining(': d1'),
      ]);
    },
  );

  it('[8.3] Whole requests that do not fit together get a batch each', async () => {
    const batcher = new HeldBatcher({ batchSize: 3, batchTimeout: 10 });

    ['A', 'B', 'C'].forEach((name) => batcher.callWhole(name, 2));

    expect(await runAll(batcher)).toEqual(['flush: A0 A1', 'flush: B0 B1', 'timeout: C0 C1']);
  });

  it.each([0, 10])(
    '[8.3] A whole request of the batch size fills a batch, with a timeout of %s',
    async (batchTimeout) => {
      const batcher = new HeldBatcher({ batchSize: 3, batchTimeout });

      batcher.call('a', 1);
      batcher.callWhole('B', 3);
      batcher.callWhole('C', 3);

      expect(await runAll(batcher)).toEqual(['flush: a0', 'full: B0 B1 B2', 'full: C0 C1 C2']);
    },
  );

  it('[8.3] Other requests may be split around a whole request', async () => {
    const batcher = new HeldBatcher({ batchSize: 3, batchTimeout: 10 });

    batcher.call('a', 4);
    batcher.callWhole('B', 3);
    batcher.call('c', 4);

    expect(await runAll(batcher)).toEqual([
      'full: a0 a1 a2',
      'flush: a3',
      'full: B0 B1 B2',
      'full: c0 c1 c2',
      'timeout: c3',
    ]);
  });

  it('[8.3] A whole request flushes no window of another lane', async () => {
    const batcher = new HeldBatcher({ batchSize: 3, batchTimeout: 10 });

    batcher.call('a', 2, 'left');
    batcher.callWhole('B', 3, 'right');
    await later();

    expect(batcher.running).toEqual(['0: B0 B1 B2']);
    expect(await runAll(batcher)).toEqual(['full: B0 B1 B2', 'timeout: a0 a1']);
  });

  it('[8.3] [4.8] A whole request larger than the window that is open since before the batch size grew flushes it', async () => {
    const batcher = new HeldBatcher({ batchSize: 2, batchTimeout: 10 });

    batcher.call('a');
    batcher.lane('lane', { batchSize: 4 });
    batcher.callWhole('B', 4);

    expect(await runAll(batcher)).toEqual(['flush: a0', 'full: B0 B1 B2 B3']);
  });

  it('[8.3] [5.5] A flushed window that is not full is not handed ahead', async () => {
    const batcher = await busyBatcher({ batchSize: 3, prefetch: 1 });

    batcher.call('a', 2);
    batcher.callWhole('B', 2);
    await later();

    expect(batcher.running).toEqual(['0: busy0']);
    await runAll(batcher);
  });

  it('[7.1] Rows of a whole request that moved to the next window count once', async () => {
    const batcher = await busyBatcher({ batchSize: 3, batchTimeout: 10, maxRows: 4 });

    batcher.call('a', 2);
    batcher.callWhole('B', 2);

    expect(batcher.depth).toBe(4);
    expect(() => batcher.call('d')).toThrow('has 4 of at most 4 rows in its queue');
    await runAll(batcher);
  });

  it('[4.8] A whole request runs also after the batch size has become too small for it', async () => {
    const batcher = new HeldBatcher({ batchSize: 8 });
    const [high, low] = [{ whole: true }, { whole: true, priority: -1 }];
    batcher.call('a');
    await later();
    batcher.ask('b', { ...high, size: 5 });
    batcher.ask('c', { ...low, size: 3 });
    batcher.ask('d', { ...high, size: 5 });
    batcher.ask('e', { ...low, size: 3 });
    batcher.lane('lane', { batchSize: 2 });

    expect(await runAll(batcher)).toEqual([
      'idle: a0',
      'full: b0 b1 b2 b3 b4 c0 c1 c2',
      'full: d0 d1 d2 d3 d4 e0 e1 e2',
    ]);
  });

  it('[8.3] [7.4] Other rows fill a batch that has too little room for a whole request, which runs in the next one', async () => {
    const batcher = await busyBatcher({ batchSize: 4 });
    batcher.ask('a', { size: 3 });
    batcher.ask('W', { size: 3, whole: true });
    batcher.ask('b', { size: 2 });
    batcher.ask('c', { size: 2, tenant: 'other' });

    expect(await runAll(batcher)).toEqual([
      'full: a0 a1 a2 c0',
      'full: c1 W0 W1 W2',
      'idle: b0 b1',
    ]);
  });

  it('[7.3] [8.3] A whole request is not split when cancelled rows leave room for a part of it in the window before', async () => {
    const batcher = await busyBatcher({ batchSize: 4, batchTimeout: 10 });
    batcher.call('a');
    const gone = batcher.call('b', 3);
    batcher.call('c');
    gone.leave();
    batcher.callWhole('D', 4);

    for (const rows of ['a0 c0', 'D0 D1 D2 D3']) {
      batcher.finishBatch();
      await later();
      expect(batcher.running).toEqual([`0: ${rows}`]);
    }
    batcher.finishBatch();
    await later();
  });
});

/** Finishes batch after batch and returns the reason for closing and the rows of each. */
async function runAll(batcher: HeldBatcher): Promise<string[]> {
  const ran: string[] = [];
  for (await runTimers(); batcher.running.length > 0; await runTimers()) {
    const [next] = batcher.running as [string];
    batcher.finishBatch();
    await later();
    ran.push(`${batcher.records.at(-1)!.reason}: ${next.slice(3)}`);
  }
  return ran.filter((batch) => !batch.includes('busy'));
}
