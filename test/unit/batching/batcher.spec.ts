import { describe, expect, it } from '@jest/globals';
import { OverloadedError, PartitionLostError, ServingClosedError } from 'nestjs-serving';
import {
  HeldBatcher,
  type HeldBatcherOptions,
  NamedRequest,
} from '../../fixtures/batching/held-batcher.js';
import {
  later,
  microtasks,
  runTimers,
  timers,
  useVirtualTime,
} from '../../fixtures/async/virtual-time.js';

describe('Batcher', () => {
  useVirtualTime();

  describe('windows', () => {
    it('[4.1] A window closes as soon as it is full', async () => {
      const batcher = new HeldBatcher({ batchTimeout: 10 });

      batcher.call('a', 2);
      await later(4);
      expect(batcher.running).toEqual([]);
      batcher.call('b');
      await later();

      expect(batcher.running).toEqual(['0: a0 a1 b0']);
    });

    it('[4.1] A window closes its timeout after its first row, and later rows do not delay it', async () => {
      const batcher = new HeldBatcher({ batchTimeout: 10 });

      batcher.call('a');
      await later(9);
      batcher.call('b');
      expect(batcher.running).toEqual([]);
      await later(1);

      expect(batcher.running).toEqual(['0: a0 b0']);
    });

    it('[4.1] The batcher has no timer while no window is open', async () => {
      const batcher = new HeldBatcher({ batchTimeout: 10 });
      expect(timers()).toBe(0);

      batcher.call('a', 4);
      await later(10);
      batcher.finishBatch();
      await later();
      expect(batcher.running).toEqual(['0: a3']);
      expect(timers()).toBe(0);

      batcher.finishBatch();
      await later();
      expect(timers()).toBe(0);
    });

    it('[4.2] A window whose timeout has passed takes more rows while all partitions are busy', async () => {
      const batcher = await busyBatcher({ batchTimeout: 10 });

      batcher.call('a');
      await later(50);
      batcher.call('b');
      batcher.finishBatch();
      await later();

      expect(batcher.running).toEqual(['0: a0 b0']);
    });

    it('[4.2] A waiting window that takes more rows keeps its place ahead of full windows that closed later', async () => {
      const batcher = await busyBatcher({ batchTimeout: 10 });

      batcher.call('a', 1, 'left');
      await later(10);
      batcher.call('b', 3, 'right');
      await later();
      batcher.call('c', 1, 'left');

      expect(await runAll(batcher)).toEqual(['0: a0 c0', '0: b0 b1 b2']);
    });

    it('[4.2] When a waiting window is full, the next row opens a window with a timeout of its own', async () => {
      const batcher = await busyBatcher({ batchTimeout: 10 });

      batcher.call('a');
      await later(10);
      batcher.call('b', 3);
      await later(9);
      batcher.finishBatch();
      await later();
      expect(batcher.running).toEqual(['0: a0 b0 b1']);

      batcher.finishBatch();
      await later();
      expect(batcher.running).toEqual([]);
      await later(1);
      expect(batcher.running).toEqual(['0: b2']);
    });

    it('[4.3] Without a timeout a row runs at once on an idle partition, and rows gather while all partitions are busy', async () => {
      const batcher = new HeldBatcher();

      batcher.call('a');
      await later();
      expect(batcher.running).toEqual(['0: a0']);

      batcher.call('b');
      await later();
      batcher.call('c');
      await later();
      expect(batcher.running).toEqual(['0: a0']);

      batcher.finishBatch();
      await later();
      expect(batcher.running).toEqual(['0: b0 c0']);
    });

    it('[4.3] Without a timeout the rows of one turn of the event loop share a batch', async () => {
      const batcher = new HeldBatcher();

      batcher.call('a');
      batcher.call('b');
      await microtasks();
      batcher.call('c');
      expect(batcher.running).toEqual([]);
      await later();

      expect(batcher.running).toEqual(['0: a0 b0 c0']);
    });
  });

  describe('partitions', () => {
    it('[4.4] Lanes share partitions in the order in which their windows became ready', async () => {
      const batcher = await busyBatcher({ batchTimeout: 10 });

      batcher.call('a', 1, 'left');
      batcher.call('b', 3, 'right');
      batcher.call('c', 3, 'middle');
      await later(10);
      batcher.call('d', 3, 'right');

      expect(await runAll(batcher)).toEqual(['0: b0 b1 b2', '0: c0 c1 c2', '0: a0', '0: d0 d1 d2']);
    });

    it('[4.4] Full windows of a lane run in their order of arrival', async () => {
      const batcher = await busyBatcher({ batchTimeout: 10 });

      batcher.call('a', 3);
      batcher.call('b', 3);
      batcher.call('c', 3);

      expect(await runAll(batcher)).toEqual(['0: a0 a1 a2', '0: b0 b1 b2', '0: c0 c1 c2']);
    });

    it('[5.1] Each partition runs one batch at a time', async () => {
      const batcher = new HeldBatcher({ partitions: 2 });

      batcher.call('a', 9);
      await later();

      expect(batcher.running).toEqual(['0: a0 a1 a2', '1: a3 a4 a5']);
    });

    it('[5.1] A batch runs on the partition that has been idle longest', async () => {
      const batcher = new HeldBatcher({ partitions: 3 });
      batcher.call('a', 9);
      await later();
      for (const partition of [2, 0, 1]) {
        batcher.finishBatch(partition);
        await later(1);
      }

      batcher.call('b', 9);
      await later();

      expect(batcher.running).toEqual(['2: b0 b1 b2', '0: b3 b4 b5', '1: b6 b7 b8']);
    });

    it('[4.5] A request larger than the room left in a batch is split over batches', async () => {
      const batcher = new HeldBatcher({ partitions: 2 });

      batcher.call('a', 2);
      batcher.call('b', 5);
      await later();

      expect(batcher.running).toEqual(['0: a0 a1 b0', '1: b1 b2 b3']);
      batcher.finishBatch(1);
      await later();
      expect(batcher.running).toEqual(['0: a0 a1 b0', '1: b4']);
    });

    it('[4.6] A batch never mixes two lanes, and its rows keep their order of arrival', async () => {
      const batcher = await busyBatcher();

      for (const [index, name] of 'abcdef'.split('').entries()) {
        batcher.call(name, 1, index % 2);
      }

      expect(await runAll(batcher)).toEqual(['0: a0 c0 e0', '0: b0 d0 f0']);
    });

    it('[5.5] Full batches are handed ahead to a busy partition, up to its limit', async () => {
      const batcher = new HeldBatcher({ partitions: 2, prefetch: 1 });

      batcher.call('a', 20);
      await later();
      expect(batcher.running).toEqual([
        '0: a0 a1 a2',
        '1: a3 a4 a5',
        '0: a6 a7 a8',
        '1: a9 a10 a11',
      ]);

      batcher.finishBatch(1);
      await later();
      expect(batcher.running.slice(2)).toEqual(['1: a9 a10 a11', '1: a12 a13 a14']);
    });

    it('[5.5] A batch that can still grow is not handed ahead', async () => {
      const batcher = await busyBatcher({ prefetch: 1 });

      batcher.call('a', 2);
      await later();
      expect(batcher.running).toEqual(['0: busy0']);

      batcher.call('b');
      await later();
      expect(batcher.running).toEqual(['0: busy0', '0: a0 a1 b0']);
    });

    it('[5.5] A batch is handed ahead only when no partition is idle', async () => {
      const batcher = await busyBatcher({ partitions: 2, prefetch: 1 });

      batcher.call('a', 3);
      await later();

      expect(batcher.running).toEqual(['0: busy0', '1: a0 a1 a2']);
    });

    it('[5.6] No batch is given to a lost partition', async () => {
      const batcher = new HeldBatcher({ partitions: 2, prefetch: 1 });
      batcher.call('a', 6);
      await later();
      batcher.targets[0]!.lost = new PartitionLostError();

      batcher.call('b', 6);
      await later();
      expect(batcher.running).toEqual(['0: a0 a1 a2', '1: a3 a4 a5', '1: b0 b1 b2']);

      batcher.finishBatch(0);
      await later();
      expect(batcher.running).toEqual(['1: a3 a4 a5', '1: b0 b1 b2']);
    });

    it('[5.6] Queued rows fail when all partitions are lost', async () => {
      const batcher = await busyBatcher();
      const [queued, after] = [new PartitionLostError('ended'), undefined];
      const request = batcher.call('a', 4);
      batcher.targets[0]!.lost = queued;

      batcher.finishBatch(0, { error: queued });
      await later();
      expect(request.error).toBe(queued);
      expect(batcher.running).toEqual([]);

      const late = batcher.call('b');
      expect(late.error).toBe(after);
      await later();
      expect(late.error).toBe(queued);
    });
  });

  describe('limits of the queue', () => {
    it('[7.1] A request that does not fit into the queue leaves none of its rows there', async () => {
      const batcher = await busyBatcher({ maxRows: 4 });
      batcher.call('a', 2);

      const refused = (): unknown => batcher.call('b', 3);

      expect(refused).toThrow(OverloadedError);
      expect(refused).toThrow(
        'Serving "held" has 2 of at most 4 rows in its queue and no room for 3 more',
      );
      batcher.call('c', 2);
      expect(await runAll(batcher)).toEqual(['0: a0 a1 c0', '0: c1']);
    });

    it('[7.1] The queue limit counts rows that wait in the queue or in a window, and no running rows', async () => {
      const batcher = new HeldBatcher({ batchTimeout: 10, maxRows: 4 });

      batcher.call('a', 4);
      await later();
      expect(batcher.running).toEqual(['0: a0 a1 a2']);

      batcher.call('c', 3);
      expect(() => batcher.call('d')).toThrow(OverloadedError);
      expect(await runAll(batcher)).toEqual(['0: a0 a1 a2', '0: a3 c0 c1', '0: c2']);
    });

    it('[H10] Rows of one turn that idle partitions take at its end do not count as queued', async () => {
      const batcher = new HeldBatcher({ maxRows: 3, partitions: 2 });
      for (const name of 'abcdefghi') {
        batcher.call(name);
      }

      expect(() => batcher.call('j')).toThrow('has 3 of at most 3 rows in its queue');
      await later();
      expect(batcher.running).toEqual(['0: a0 b0 c0', '1: d0 e0 f0']);
      await runAll(batcher);
    });

    it('[H10] Rows in an open window count as queued although partitions are idle', async () => {
      const batcher = new HeldBatcher({ maxRows: 4, partitions: 2, batchTimeout: 10 });
      ['left', 'right'].forEach((lane) => batcher.call(lane, 2, lane));

      expect(() => batcher.call('a', 1, 'left')).toThrow('has 4 of at most 4 rows in its queue');
      await runAll(batcher);
    });

    it.each([
      ['a priority below 0', { priority: -1 }, 3, 'leave half of 4 to others'],
      ['a tenant', { tenant: 'one' }, 3, 'rows of tenant "one"'],
    ])(
      '[H10] Rows that idle partitions take do not count against the share of %s',
      async (_, options, most, message) => {
        const batcher = new HeldBatcher({ maxRows: 4, partitions: 2, batchSize: 4 });
        for (let i = 0; i < 8 + most - 1; i++) {
          batcher.ask('a', options);
        }

        expect(() => batcher.ask('b', options)).toThrow(message);
        await runAll(batcher);
      },
    );
  });

  it('[9.3] A draining batcher makes no row wait for others and still accepts calls', async () => {
    const batcher = new HeldBatcher({ batchTimeout: 10_000 });
    batcher.call('a');

    batcher.drain();
    await later();
    expect(batcher.running).toEqual(['0: a0']);

    batcher.call('b');
    expect(await runAll(batcher)).toEqual(['0: a0', '0: b0']);
    expect(batcher.records.map(({ reason }) => reason)).toEqual(['drain', 'drain']);
    expect(timers()).toBe(0);
  });

  describe('closing', () => {
    it('[9.3] The batcher closes after every queued row has run, open windows at once', async () => {
      const batcher = await busyBatcher({ batchTimeout: 10_000 });
      batcher.call('a', 4);

      const closed = settled(batcher.close());
      expect(await runAll(batcher)).toEqual(['0: a0 a1 a2', '0: a3']);

      expect(closed.at).toBe(Date.now());
    });

    it('[9.3] The batcher does not close before its running batches have finished', async () => {
      const batcher = await busyBatcher();

      const closed = settled(batcher.close());
      await later(1000);
      expect(closed.at).toBeUndefined();

      batcher.finishBatch();
      await later();
      expect(closed.at).toBe(Date.now());
    });

    it('[9.3] An idle batcher closes at once, also when close is called twice', async () => {
      const batcher = new HeldBatcher();

      const closed = [settled(batcher.close()), settled(batcher.close())];
      await later();

      expect(closed.map(({ at }) => at)).toEqual([Date.now(), Date.now()]);
    });

    it('[9.3] A closed batcher refuses calls', async () => {
      const batcher = new HeldBatcher();
      void batcher.close();

      expect(() => batcher.call('a')).toThrow(ServingClosedError);
      expect(() => batcher.call('a')).toThrow('Serving "held" is closed and takes no more calls');
      await later();
    });

    it('[9.3] Abandoning fails the queued rows and lets running batches finish', async () => {
      const batcher = await busyBatcher({ batchTimeout: 10 });
      const requests = [batcher.call('a', 4), batcher.call('b', 1, 'other')];
      const error = new ServingClosedError();

      const closed = settled(batcher.close());
      batcher.abandon(error);
      await later();
      expect(requests.map((request) => request.error)).toEqual([error, error]);
      expect(batcher.running).toEqual(['0: busy0']);

      batcher.finishBatch();
      await later();
      expect(batcher.running).toEqual([]);
      expect(closed.at).toBe(Date.now());
    });
  });

  it('[4.11] No row that is submitted while a batch is dispatched is lost', async () => {
    const names = 'bcdefgh'.split('');
    const batcher: HeldBatcher = new HeldBatcher({
      batchSize: 2,
      batchTimeout: 10,
      onDispatch: () => {
        names.splice(0, 2).forEach((name) => batcher.call(name));
      },
    });

    batcher.call('a', 2);

    expect(await runAll(batcher)).toEqual([
      '0: a0 a1',
      '0: b0 c0',
      '0: d0 e0',
      '0: f0 g0',
      '0: h0',
    ]);
  });

  it.each([0, 10])(
    '[4.11] The work per row does not grow with the number of queued rows, with a timeout of %s',
    async (batchTimeout) => {
      let reads = 0;
      const readsPerRow = async (rows: number): Promise<number> => {
        const batcher = new HeldBatcher({ batchTimeout });
        const lane = batcher.lane();
        const request = new NamedRequest('a', { lane });
        Object.defineProperty(request, 'lane', { get: () => (reads++, lane) });
        reads = 0;
        Array.from({ length: rows }, () => batcher.submit(request));
        await runAll(batcher);
        return reads / rows;
      };

      expect(await readsPerRow(900)).toBe(await readsPerRow(30));
    },
  );

  it('[7.1] A rule of admission sees each call, also one that joins a batch which a full queue has sent', async () => {
    let admitted = 0;
    const admit = (): void => void admitted++;
    const rule = {
      mayJoin: () => admitted < 16,
      join: admit,
      check(): void {
        if (admitted === 16) {
          throw new OverloadedError('no more than 16');
        }
      },
      enter: admit,
    };
    const batcher = new HeldBatcher({
      batchSize: 32,
      maxRows: 8,
      policies: [{ isForAll: () => true, open: () => rule }],
    });
    const refused = Array.from({ length: 40 }, () => {
      try {
        batcher.call('a');
        return 0;
      } catch {
        return 1;
      }
    });
    await runAll(batcher);

    expect(refused.filter(Boolean)).toHaveLength(24);
  });
});

/** A batcher whose partition 0 runs a batch. */
async function busyBatcher(options?: HeldBatcherOptions): Promise<HeldBatcher> {
  const batcher = new HeldBatcher(options);
  batcher.call('busy', 1, 'busy');
  await later(options?.batchTimeout);
  return batcher;
}

/**
 * Finishes batch after batch and returns all that ran, without the one that made the partition
 * busy.
 */
async function runAll(batcher: HeldBatcher): Promise<string[]> {
  const ran: string[] = [];
  for (await runTimers(); batcher.running.length > 0; await runTimers()) {
    ran.push(batcher.running[0]!);
    batcher.finishBatch(Number.parseInt(batcher.running[0]!));
  }
  return ran.filter((batch) => !batch.includes('busy'));
}

/** Notes the virtual time at which the promise resolves. */
function settled(promise: Promise<void>): { at?: number } {
  const note: { at?: number } = {};
  void promise.then(() => (note.at = Date.now()));
  return note;
}
