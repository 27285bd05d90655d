import { describe, expect, it } from '@jest/globals';
import {
  HeldBatcher,
  type HeldBatcherOptions,
  type NamedRequest,
} from '../../fixtures/batching/held-batcher.js';
import { later, useVirtualTime } from '../../fixtures/async/virtual-time.js';

describe('Batcher: cancelled requests', () => {
  useVirtualTime();

  it('[7.3] No row of a cancelled request runs', async () => {
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

  it('[7.3] No further row of a cancelled request runs after one of its batches has failed', async () => {
    const batcher = new HeldBatcher({ batchSize: 2 });
    const request = batcher.call('a', 5);
    await later();
    leave(request);

    batcher.finishBatch(0, { error: new Error('out of memory') });
    await later();

    expect(batcher.running).toEqual([]);
    expect(batcher.started).toHaveLength(1);
  });

  it('[7.3] A batch with nothing but cancelled requests gets no partition and is not reported', async () => {
    const batcher = await busyBatcher({ partitions: 2, batchSize: 2 });
    [batcher.call('a', 2, 'left'), batcher.call('b', 1, 'right')].forEach(leave);
    batcher.call('c', 1, 'middle');
    await later();

    expect(batcher.running).toEqual(['0: busy0', '1: c0']);
    expect(batcher.started).toHaveLength(2);
    [0, 1].forEach((partition) => batcher.finishBatch(partition));
    await later();
  });

  it('[7.3] A batch with nothing but cancelled requests is dropped from the queue while all partitions are busy', async () => {
    const batcher = await busyBatcher({ maxRows: 3 });
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

  it('[7.3] A cancelled request makes room in the queue at once, also in a batch that it shared', async () => {
    const batcher = await busyBatcher({ batchSize: 4, maxRows: 4 });
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

  it('[7.3] Rows of the same lane move up into free places, and whole requests are not split for it', async () => {
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

  it('[7.3] [12.2] The reported wait of a batch is that of the oldest row that runs', async () => {
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

  it('[9.3] The batcher closes without running cancelled requests', async () => {
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
