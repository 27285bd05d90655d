import { describe, expect, it } from '@jest/globals';
import { busyBatcher, runAll } from '../../fixtures/batching/busy-batcher.js';
import { HeldBatcher, type HeldBatcherOptions } from '../../fixtures/batching/held-batcher.js';
import { later, useVirtualTime } from '../../fixtures/async/virtual-time.js';

const sizes = { batchSize: 8, preferredSizes: [4, 6] };

const busy = (options: HeldBatcherOptions = {}): Promise<HeldBatcher> =>
  busyBatcher({ ...sizes, ...options });
const sizesOf = ({ started }: HeldBatcher): number[] => started.slice(1).map(({ rows }) => rows);

describe('Batcher: preferred sizes', () => {
  useVirtualTime();

  it('[14.5] A batch has the largest preferred size that the waiting rows fill, and the rest follows', async () => {
    const batcher = await busy();
    batcher.call('a', 13);
    await runAll(batcher);
    expect(sizesOf(batcher)).toEqual([6, 6, 1]);

    batcher.call('b', 5);
    await runAll(batcher);
    expect(sizesOf(batcher).slice(3)).toEqual([4, 1]);
  });

  it('[14.5] With a batch timeout, rows wait for the next preferred size for at most that time', async () => {
    const batcher = new HeldBatcher({ ...sizes, batchTimeout: 20, partitions: 3 });
    batcher.call('a', 5);
    await later();
    expect(batcher.running).toEqual(['0: a0 a1 a2 a3']);

    await later(19);
    expect(batcher.running).toHaveLength(1);
    await later(1);
    expect(batcher.running).toEqual(['0: a0 a1 a2 a3', '1: a4']);
    expect(batcher.started[1]).toMatchObject({ reason: 'timeout', wait: 20 });
    await runAll(batcher);
  });

  it('[14.5] While all partitions are busy, a formed batch grows to the next preferred size', async () => {
    const batcher = await busy({ batchTimeout: 20 });
    batcher.call('a', 4);
    await later(1);
    batcher.call('b', 1);
    batcher.call('c', 1);
    await later(1);
    batcher.finishBatch();
    await later();

    expect(batcher.running).toEqual(['0: a0 a1 a2 a3 b0 c0']);
    await runAll(batcher);
    expect(sizesOf(batcher)).toEqual([6]);
  });

  it('[14.5] Rows that are too few for the next preferred size do not hold up those that fill one', async () => {
    const batcher = await busy({ batchTimeout: 20 });
    batcher.call('a', 5);
    await later(1);
    batcher.finishBatch();
    await later();

    expect(batcher.running).toEqual(['0: a0 a1 a2 a3']);
    await runAll(batcher);
  });

  it('[14.5] Rows whose window has timed out run in a batch of any size', async () => {
    const batcher = await busy({ batchTimeout: 20 });
    batcher.call('a', 3);
    await later(20);
    batcher.call('b', 2);

    expect(await runAll(batcher)).toEqual(['a0 a1 a2 b0 b1']);
  });

  it('[14.5] A request that must run whole is in one batch, whatever the preferred sizes', async () => {
    const batcher = await busy({ batchTimeout: 20 });
    batcher.call('a', 1);
    batcher.callWhole('w', 6);
    await later(20);

    expect(await runAll(batcher)).toEqual(['a0', 'w0 w1 w2 w3 w4 w5']);
  });

  it('[14.5] A window for a request that must run whole has room for all of it', async () => {
    const batcher = new HeldBatcher({ ...sizes, batchTimeout: 20 });
    batcher.callWhole('w', 5);
    await later(20);

    expect(await runAll(batcher)).toEqual(['w0 w1 w2 w3 w4']);
  });

  it('[14.5] Preferred sizes above a batch size that was lowered are ignored', async () => {
    const batcher = await busy({ batchTimeout: 20 });
    batcher.lane('lane', { batchSize: 5 });
    batcher.call('a', 6);

    expect(await runAll(batcher)).toEqual(['a0 a1 a2 a3', 'a4 a5']);
  });
});
