import { describe, expect, it } from '@jest/globals';
import { later, microtasks, useVirtualTime } from '../../fixtures/async/virtual-time.js';
import { busyBatcher, runAll } from '../../fixtures/batching/busy-batcher.js';
import { HeldBatcher, namesOf } from '../../fixtures/batching/held-batcher.js';

describe('The report of a batch', () => {
  useVirtualTime();

  it.each([
    { reason: 'full', options: { batchTimeout: 10 }, rows: 3 },
    { reason: 'full', options: {}, rows: 3 },
    { reason: 'timeout', options: { batchTimeout: 10 }, rows: 2 },
    { reason: 'idle', options: {}, rows: 2 },
  ])(
    '[12.2] A batch reports that it closed for the reason "$reason"',
    async ({ reason, options, rows }) => {
      const batcher = new HeldBatcher(options);

      batcher.call('a', rows);
      await later(10);
      await runAll(batcher);

      expect(batcher.records.map((record) => record.reason)).toEqual([reason]);
    },
  );

  it('[4.8] [12.2] A batch reports the reason for closing by the timeout with which its window opened', async () => {
    const batcher = new HeldBatcher({ batchTimeout: 10 });

    batcher.call('a');
    batcher.lane('lane', { batchTimeout: 0 });
    await runAll(batcher);
    batcher.call('b');
    await runAll(batcher);

    expect(batcher.records.map(({ reason }) => reason)).toEqual(['timeout', 'idle']);
  });

  it('[12.2] A batch that was filled while it waited in the queue reports the reason "full"', async () => {
    const batcher = await busyBatcher({ batchTimeout: 10 });

    batcher.call('a', 2);
    await later(10);
    batcher.call('b');
    await runAll(batcher);

    expect(batcher.records[1]).toMatchObject({ reason: 'full' });
  });

  it('[12.2] A batch that was full reports the reason "full" also when a row has left since', async () => {
    const batcher = await busyBatcher({ batchTimeout: 10 });
    batcher.call('a', 2);
    batcher.call('b').leave();

    await runAll(batcher);

    expect(batcher.records[1]).toMatchObject({ reason: 'full', rows: 2 });
  });

  it('[12.2] A batch that closed because the batcher closes reports the reason "drain"', async () => {
    const batcher = await busyBatcher({ batchTimeout: 10 });

    batcher.call('a', 4);
    void batcher.close();
    await runAll(batcher);

    expect(batcher.records.slice(1).map(({ reason }) => reason)).toEqual(['full', 'drain']);
  });

  it('[12.2] A batch reports its partition, its room, the wait of its oldest row and its run time', async () => {
    const batcher = new HeldBatcher({ batchTimeout: 10, partitions: 2 });
    batcher.call('busy', 1, 'busy');
    await later(10);

    batcher.call('a');
    await later(4);
    batcher.call('b');
    await later(6);
    expect(batcher.running).toEqual(['0: busy0', '1: a0 b0']);
    expect(batcher.started[1]).toMatchObject({ partition: 1, rows: 2, wait: 10 });
    await later(25);
    batcher.finishBatch(1);
    await later();

    expect(batcher.records).toEqual([
      {
        id: 2,
        parts: expect.anything(),
        rows: 2,
        partition: 1,
        batchSize: 3,
        reason: 'timeout',
        wait: 10,
        queued: 0,
        runTime: 25,
      },
    ]);
    expect(namesOf(batcher.records[0]!.parts)).toBe('a0 b0');
    await runAll(batcher);
  });

  it('[12.2] The run time of a batch that was handed ahead starts when the batch before it has finished', async () => {
    const batcher = await busyBatcher({ prefetch: 1 });

    batcher.call('a', 3);
    await later(10);
    batcher.finishBatch();
    await later(5);
    batcher.finishBatch();
    await later();

    expect(batcher.records[1]).toMatchObject({ wait: 10, runTime: 5 });
  });

  it('[12.2] The wait of rows that arrive in the turn in which another batch finishes is measured from their arrival', async () => {
    const batcher = await busyBatcher();
    batcher.call('a');
    batcher.call('b', 2);
    await later(10);

    batcher.finishBatch();
    await microtasks();
    batcher.call('c');
    await later();
    await later(5);
    await runAll(batcher);

    expect(batcher.records.map(({ wait }) => wait)).toEqual([0, 10, 5]);
  });

  it('[12.2] [6.1] A failed batch reports its error, and the next batch runs', async () => {
    const batcher = await busyBatcher();
    const error = new Error('out of memory');
    batcher.call('a');

    batcher.finishBatch(0, { error });
    await later();

    expect(batcher.records[0]).toMatchObject({ error });
    expect(await runAll(batcher)).toEqual(['a0']);
    expect(batcher.records[1]).not.toHaveProperty('error');
  });
});
