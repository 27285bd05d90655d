import { describe, expect, it } from '@jest/globals';
import { PartitionLostError, ServingClosedError } from 'nestjs-serving';
import { busyBatcher, runAll } from '../../fixtures/batching/busy-batcher.js';
import { HeldBatcher, type NamedRequest } from '../../fixtures/batching/held-batcher.js';
import { later, useVirtualTime } from '../../fixtures/async/virtual-time.js';

const error = new PartitionLostError('the process has ended');

const partOf = (request: NamedRequest, offset: number, count: number) => ({
  request,
  offset,
  count,
});

describe('Batcher: unavailable partitions', () => {
  useVirtualTime();

  it('[5.6] Rows wait while all partitions are unavailable, and run when one is back', async () => {
    const batcher = new HeldBatcher({ partitions: 2 });
    batcher.targets.forEach((target) => target.change({ unavailable: error }));
    const requests = [batcher.call('a', 4), batcher.call('b', 1, 'other')];
    await later(100_000);
    expect(batcher.running).toEqual([]);

    batcher.targets[1]!.change({});
    await later();

    expect(batcher.running).toEqual(['1: a0 a1 a2']);
    expect(await runAll(batcher)).toEqual(['a0 a1 a2', 'a3', 'b0']);
    expect(requests.map((request) => request.error)).toEqual([undefined, undefined]);
  });

  it('[5.6] The other partitions go on while one is unavailable', async () => {
    const batcher = new HeldBatcher({ partitions: 2, prefetch: 1 });
    batcher.targets[0]!.change({ unavailable: error });

    batcher.call('a', 9);
    await later();

    expect(batcher.running).toEqual(['1: a0 a1 a2', '1: a3 a4 a5']);
    batcher.targets[0]!.change({});
    await later();
    expect(batcher.running.slice(2)).toEqual(['0: a6 a7 a8']);
    await runAll(batcher);
  });

  it('[5.6] Windows take more rows while all partitions are unavailable', async () => {
    const batcher = new HeldBatcher({ batchTimeout: 10 });
    batcher.targets[0]!.change({ unavailable: error });
    batcher.call('a');
    await later(50);
    batcher.call('b');

    batcher.targets[0]!.change({});

    expect(await runAll(batcher)).toEqual(['a0 b0']);
  });

  it('[5.6] Queued rows fail when the last partition is lost, and not while one is unavailable', async () => {
    const batcher = new HeldBatcher({ partitions: 2 });
    batcher.targets[0]!.change({ lost: error });
    batcher.targets[1]!.change({ unavailable: error });
    const requests = [batcher.call('a', 2), batcher.call('b', 1, 'other')];
    await later(1000);
    expect(requests.map((request) => request.error)).toEqual([undefined, undefined]);

    batcher.targets[1]!.change({ lost: new PartitionLostError('another') });
    await later();

    expect(requests.map((request) => request.error)).toEqual([error, error]);
    expect(batcher.depth).toBe(0);
  });

  it('[5.6] A call fails while all partitions are lost, and runs when one is back', async () => {
    const batcher = new HeldBatcher();
    batcher.targets[0]!.change({ lost: error });
    const failed = batcher.call('a');
    await later();
    expect(failed.error).toBe(error);

    batcher.targets[0]!.change({});
    const served = batcher.call('b');
    await later();

    expect(batcher.running).toEqual(['0: b0']);
    await runAll(batcher);
    expect(served.error).toBeUndefined();
  });

  it('[5.6] Rows of an open window fail when it closes while all partitions are lost', async () => {
    const batcher = new HeldBatcher({ batchTimeout: 10 });
    const request = batcher.call('a');
    batcher.targets[0]!.change({ lost: error });
    await later(9);
    expect(request.error).toBeUndefined();

    await later(1);

    expect(request.error).toBe(error);
    expect(batcher.depth).toBe(0);
  });

  it('[5.6] Rows of an open window run when the partition is back before it closes', async () => {
    const batcher = new HeldBatcher({ batchTimeout: 10 });
    batcher.targets[0]!.change({ lost: error });
    batcher.call('a', 3, 'other');
    batcher.call('b');
    await later(5);
    batcher.targets[0]!.change({});
    batcher.call('c');

    await later(5);

    expect(batcher.running).toEqual(['0: b0 c0']);
    await runAll(batcher);
  });

  it('[5.6] [9.3] The batcher closes when its partitions are back or its queued rows are abandoned', async () => {
    for (const end of ['back', 'abandoned']) {
      const batcher = new HeldBatcher();
      batcher.targets[0]!.change({ unavailable: error });
      const request = batcher.call('a');
      let closed = false;
      void batcher.close().then(() => (closed = true));
      await later(1000);
      expect(closed).toBe(false);

      if (end === 'back') {
        batcher.targets[0]!.change({});
        expect(await runAll(batcher)).toEqual(['a0']);
      } else {
        batcher.abandon(new ServingClosedError('too late'));
      }
      await later();

      expect([closed, request.error instanceof ServingClosedError]).toEqual([
        true,
        end === 'abandoned',
      ]);
    }
  });

  describe('retried batches', () => {
    it('[5.6] [6.4] Retried batches run on other partitions, each by itself, before later rows', async () => {
      const batcher = new HeldBatcher({ batchSize: 4 });
      const a = batcher.call('a', 4);
      await later(1);
      batcher.call('b', 4);
      const retries = [
        { parts: [partOf(a, 0, 2)], retryState: 'known' },
        { parts: [partOf(a, 2, 2)] },
      ];

      batcher.finishBatch(0, { error, retries });

      expect(await runAll(batcher)).toEqual(['a0 a1', 'a2 a3', 'b0 b1 b2 b3']);
      expect(batcher.records.map(({ reason }) => reason)).toEqual([
        'full',
        'retry',
        'retry',
        'full',
      ]);
    });

    it('[5.6] A retried batch waits for a partition that is expected back', async () => {
      const batcher = new HeldBatcher();
      const a = batcher.call('a', 2);
      await later();
      batcher.targets[0]!.change({ unavailable: error });
      batcher.finishBatch(0, { error, retries: [{ parts: [partOf(a, 0, 2)] }] });
      await later(1000);
      expect([batcher.running, batcher.depth]).toEqual([[], 2]);

      batcher.targets[0]!.change({});

      expect(await runAll(batcher)).toEqual(['a0 a1']);
      expect(batcher.depth).toBe(0);
    });

    it('[5.6] A retried batch fails with the error of the lost partitions', async () => {
      const batcher = new HeldBatcher();
      const a = batcher.call('a', 2);
      await later();
      batcher.targets[0]!.change({ lost: error });

      batcher.finishBatch(0, {
        error: new Error('failed'),
        retries: [{ parts: [partOf(a, 0, 2)] }],
      });
      await later();

      expect([a.error, batcher.depth, batcher.running]).toEqual([error, 0, []]);
    });

    it('[7.1] Retried rows count as queued, also beyond the queue limit', async () => {
      const batcher = new HeldBatcher({ maxRows: 3 });
      const a = batcher.call('a', 3);
      await later(1);
      batcher.call('b', 3);

      batcher.targets[0]!.change({ unavailable: error });
      batcher.finishBatch(0, { error, retries: [{ parts: [partOf(a, 0, 3)] }] });
      await later();

      expect(batcher.depth).toBe(6);
      expect(() => batcher.call('c')).toThrow('has 6 of at most 3 rows');
      batcher.targets[0]!.change({});
      expect(await runAll(batcher)).toEqual(['a0 a1 a2', 'b0 b1 b2']);
      expect(batcher.depth).toBe(0);
    });

    it('[7.3] Cancelled rows of a failed batch are not retried, whether they left before or after the failure', async () => {
      const batcher = await busyBatcher({ batchSize: 4 });
      const requests = ['a', 'b', 'c', 'd'].map((name) => batcher.call(name));
      batcher.finishBatch();
      await later();
      batcher.targets[0]!.change({ unavailable: error });
      requests[0]!.leave();
      const retries = [requests.slice(0, 2), requests.slice(2)].map((half) => ({
        parts: half.map((request) => partOf(request, 0, 1)),
      }));
      batcher.finishBatch(0, { error, retries });
      await later();
      expect(batcher.depth).toBe(3);

      requests[2]!.leave();
      requests[3]!.leave();
      expect(batcher.depth).toBe(1);
      batcher.targets[0]!.change({});

      expect(await runAll(batcher)).toEqual(['b0']);
      expect(batcher.depth).toBe(0);
    });

    it('[7.3] A failed batch with nothing but cancelled rows is not retried, and its end is reported', async () => {
      const batcher = new HeldBatcher();
      const a = batcher.call('a', 2);
      await later();
      a.leave();

      batcher.finishBatch(0, { error, retries: [{ parts: [partOf(a, 0, 2)] }] });
      await later();

      expect([batcher.running, batcher.depth]).toEqual([[], 0]);
      expect(batcher.records).toHaveLength(1);
    });

    it('[9.3] Retried batches run before the batcher closes, and fail when the queued rows were abandoned', async () => {
      for (const abandons of [false, true]) {
        const batcher = new HeldBatcher();
        const a = batcher.call('a', 2);
        await later();
        let closed = false;
        void batcher.close().then(() => (closed = true));
        const reason = new ServingClosedError('closed');
        if (abandons) {
          batcher.abandon(reason);
        }

        batcher.finishBatch(0, { error, retries: [{ parts: [partOf(a, 0, 2)] }] });

        expect(await runAll(batcher)).toEqual(abandons ? [] : ['a0 a1']);
        expect([a.error, closed, batcher.depth]).toEqual([abandons ? reason : undefined, true, 0]);
      }
    });
  });
});
