import { describe, expect, it } from '@jest/globals';
import {
  HeldBatcher,
  type HeldBatcherOptions,
  type NamedRequest,
} from '../../fixtures/batching/held-batcher.js';
import { later, useVirtualTime } from '../../fixtures/async/virtual-time.js';

describe('Batcher, of requests for which nobody waits any more,', () => {
  useVirtualTime();

  it('[7.3] runs no row', async () => {
    const batcher = await busyBatcher();
    const [, gone] = ['a', 'b', 'c'].map((name) => batcher.call(name));
    leave(gone!);

    batcher.finishBatch();
    await later();

    expect(batcher.running).toEqual(['0: a0 c0']);
    batcher.finishBatch();
    await later();
    expect(batcher.records.at(-1)!.parts.map(({ request }) => request.name)).toEqual(['a', 'c']);
  });

  it('[7.3] runs no row of the batches that are left where one of them has failed', async () => {
    const batcher = new HeldBatcher({ batchSize: 2 });
    const request = batcher.call('a', 5);
    await later();
    leave(request);

    batcher.finishBatch(0, { error: new Error('out of memory') });
    await later();

    expect(batcher.running).toEqual([]);
    expect(batcher.started).toHaveLength(1);
  });

  it('[7.3] gives no partition to a batch of nothing else, and tells of none', async () => {
    const batcher = await busyBatcher({ partitions: 2, batchSize: 2 });
    [batcher.call('a', 2, 'left'), batcher.call('b', 1, 'right')].forEach(leave);
    batcher.call('c', 1, 'middle');
    await later();

    expect(batcher.running).toEqual(['0: busy0', '1: c0']);
    expect(batcher.started).toHaveLength(2);
    [0, 1].forEach((partition) => batcher.finishBatch(partition));
    await later();
  });

  it('[7.3] drops a batch of nothing else while every partition is busy, and makes room in the queue', async () => {
    const batcher = await busyBatcher({ maxQueue: 3 });
    const gone = batcher.call('a', 2, 'left');
    batcher.call('b', 1, 'right');
    expect(() => batcher.call('c')).toThrow('has 3 of at most 3 rows in its queue');
    leave(gone);

    batcher.call('c', 2);
    await later();

    expect(batcher.running).toEqual(['0: busy0']);
    batcher.finishBatch();
    await later();
    expect(batcher.running).toEqual(['0: b0']);
    batcher.finishBatch();
    await later();
    batcher.finishBatch();
    await later();
  });

  it('[7.3] makes room in the queue at once, also in a batch that others share', async () => {
    const batcher = await busyBatcher({ batchSize: 4, maxQueue: 4 });
    const gone = batcher.call('a', 3);
    batcher.call('b');
    leave(gone);
    batcher.call('c', 3);

    batcher.finishBatch();
    await later();

    expect(batcher.running).toEqual(['0: b0 c0 c1 c2']);
    batcher.finishBatch();
    await later();
  });

  it('[7.3] lets rows of their lane move up into their places, and no row that must stay with others', async () => {
    const batcher = await busyBatcher({ batchSize: 3 });
    const gone = batcher.call('a', 2);
    batcher.call('b');
    batcher.call('c', 1, 'other');
    const alsoGone = batcher.call('d');
    batcher.call('e');
    batcher.callWhole('f', 3);
    batcher.call('g');
    leave(gone);
    leave(alsoGone);

    for (const rows of ['b0 e0', 'c0', 'f0 f1 f2', 'g0']) {
      batcher.finishBatch();
      await later();
      expect(batcher.running).toEqual([`0: ${rows}`]);
    }
    batcher.finishBatch();
    await later();
  });

  it('[7.3] [12.2] tells the wait of the oldest row that runs', async () => {
    const batcher = await busyBatcher();
    leave(batcher.call('a'));
    await later(7);
    batcher.call('b');
    await later(5);

    batcher.finishBatch();
    await later();
    batcher.finishBatch();
    await later();

    expect(batcher.records[1]).toMatchObject({ wait: 5 });
  });

  it('[9.3] closes without them', async () => {
    const batcher = new HeldBatcher({ batchTimeout: 10_000 });
    leave(batcher.call('a'));

    await batcher.close();

    expect(batcher.started).toEqual([]);
  });
});

function leave(request: NamedRequest): void {
  request.leave();
}

/** A batcher whose partition 0 runs a batch. */
async function busyBatcher(options?: HeldBatcherOptions): Promise<HeldBatcher> {
  const batcher = new HeldBatcher(options);
  batcher.call('busy', 1, 'busy');
  await later();
  return batcher;
}
