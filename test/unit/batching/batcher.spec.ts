import { describe, expect, it } from '@jest/globals';
import { OverloadedError, PartitionLostError, ServingClosedError } from '../../../lib/errors.js';
import {
  HeldBatcher,
  namesOf,
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

  describe('closes windows', () => {
    it('[4.1] as soon as they are full', async () => {
      const batcher = new HeldBatcher({ batchTimeout: 10 });

      batcher.call('a', 2);
      await later(4);
      expect(batcher.running).toEqual([]);
      batcher.call('b');
      await later();

      expect(batcher.running).toEqual(['0: a0 a1 b0']);
    });

    it('[4.1] their timeout after their first row, which later rows do not put off', async () => {
      const batcher = new HeldBatcher({ batchTimeout: 10 });

      batcher.call('a');
      await later(9);
      batcher.call('b');
      expect(batcher.running).toEqual([]);
      await later(1);

      expect(batcher.running).toEqual(['0: a0 b0']);
    });

    it('[4.1] and owns no timer while it has none open', async () => {
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

    it('[4.2] but lets one whose timeout has passed grow while all partitions are busy', async () => {
      const batcher = await busyBatcher({ batchTimeout: 10 });

      batcher.call('a');
      await later(50);
      batcher.call('b');
      batcher.finishBatch();
      await later();

      expect(batcher.running).toEqual(['0: a0 b0']);
    });

    it('[4.2] in whose place they then grow, while windows that are full stand behind', async () => {
      const batcher = await busyBatcher({ batchTimeout: 10 });

      batcher.call('a', 1, 'left');
      await later(10);
      batcher.call('b', 3, 'right');
      await later();
      batcher.call('c', 1, 'left');

      expect(await runAll(batcher)).toEqual(['0: a0 c0', '0: b0 b1 b2']);
    });

    it('[4.2] and opens the next one, with a clock of its own, when the waiting one is full', async () => {
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

    it('[4.3] at once without a timeout, and coalesces rows while all partitions are busy', async () => {
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

    it('[4.3] without a timeout at the end of the turn of the event loop, whose rows so share a batch', async () => {
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

  describe('shares partitions', () => {
    it('[4.4] among lanes in the order in which their windows became ready', async () => {
      const batcher = await busyBatcher({ batchTimeout: 10 });

      batcher.call('a', 1, 'left');
      batcher.call('b', 3, 'right');
      batcher.call('c', 3, 'middle');
      await later(10);
      batcher.call('d', 3, 'right');

      expect(await runAll(batcher)).toEqual(['0: b0 b1 b2', '0: c0 c1 c2', '0: a0', '0: d0 d1 d2']);
    });

    it('[4.4] among the full windows of a lane in their order', async () => {
      const batcher = await busyBatcher({ batchTimeout: 10 });

      batcher.call('a', 3);
      batcher.call('b', 3);
      batcher.call('c', 3);

      expect(await runAll(batcher)).toEqual(['0: a0 a1 a2', '0: b0 b1 b2', '0: c0 c1 c2']);
    });

    it('[5.1] one batch to each at a time', async () => {
      const batcher = new HeldBatcher({ partitions: 2 });

      batcher.call('a', 9);
      await later();

      expect(batcher.running).toEqual(['0: a0 a1 a2', '1: a3 a4 a5']);
    });

    it('[5.1] and takes the one that has been idle longest', async () => {
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

    it('[4.5] and splits a request that is larger than the room left', async () => {
      const batcher = new HeldBatcher({ partitions: 2 });

      batcher.call('a', 2);
      batcher.call('b', 5);
      await later();

      expect(batcher.running).toEqual(['0: a0 a1 b0', '1: b1 b2 b3']);
      batcher.finishBatch(1);
      await later();
      expect(batcher.running).toEqual(['0: a0 a1 b0', '1: b4']);
    });

    it('[4.6] never two lanes in one batch, and the rows of each in the order of arrival', async () => {
      const batcher = await busyBatcher();

      for (const [index, name] of 'abcdef'.split('').entries()) {
        batcher.call(name, 1, index % 2);
      }

      expect(await runAll(batcher)).toEqual(['0: a0 c0 e0', '0: b0 d0 f0']);
    });

    it('[5.5] and hands full batches ahead to a busy one, as many as it takes', async () => {
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

    it('[5.5] but hands no batch ahead that could still grow', async () => {
      const batcher = await busyBatcher({ prefetch: 1 });

      batcher.call('a', 2);
      await later();
      expect(batcher.running).toEqual(['0: busy0']);

      batcher.call('b');
      await later();
      expect(batcher.running).toEqual(['0: busy0', '0: a0 a1 b0']);
    });

    it('[5.5] and hands a batch ahead only when no partition is idle', async () => {
      const batcher = await busyBatcher({ partitions: 2, prefetch: 1 });

      batcher.call('a', 3);
      await later();

      expect(batcher.running).toEqual(['0: busy0', '1: a0 a1 a2']);
    });

    it('[5.6] that are not lost', async () => {
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

    it('[5.6] and fails what is queued when all are lost', async () => {
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

  describe('limits its queue', () => {
    it('[7.1] to whole requests: one that does not fit leaves none of its rows', async () => {
      const batcher = await busyBatcher({ maxQueue: 4 });
      batcher.call('a', 2);

      const refused = (): unknown => batcher.call('b', 3);

      expect(refused).toThrow(OverloadedError);
      expect(refused).toThrow(
        'Serving "held" has 2 of at most 4 rows in its queue and no room for 3 more',
      );
      batcher.call('c', 2);
      expect(await runAll(batcher)).toEqual(['0: a0 a1 c0', '0: c1']);
    });

    it('[7.1] by rows that wait, in line or in a window, and not by those that run', async () => {
      const batcher = new HeldBatcher({ batchTimeout: 10, maxQueue: 4 });

      batcher.call('a', 4);
      await later();
      expect(batcher.running).toEqual(['0: a0 a1 a2']);

      batcher.call('c', 3);
      expect(() => batcher.call('d')).toThrow(OverloadedError);
      expect(await runAll(batcher)).toEqual(['0: a0 a1 a2', '0: a3 c0 c1', '0: c2']);
    });

    it('[H10] does not count the rows of one turn that idle partitions take at its end', async () => {
      const batcher = new HeldBatcher({ maxQueue: 3, partitions: 2 });
      for (const name of 'abcdefghi') {
        batcher.call(name);
      }

      expect(() => batcher.call('j')).toThrow('has 3 of at most 3 rows in its queue');
      await later();
      expect(batcher.running).toEqual(['0: a0 b0 c0', '1: d0 e0 f0']);
      await runAll(batcher);
    });

    it('[H10] counts the rows that idle partitions leave because their window is open', async () => {
      const batcher = new HeldBatcher({ maxQueue: 4, partitions: 2, batchTimeout: 10 });
      ['left', 'right'].forEach((lane) => batcher.call(lane, 2, lane));

      expect(() => batcher.call('a', 1, 'left')).toThrow('has 4 of at most 4 rows in its queue');
      await runAll(batcher);
    });

    it.each([
      ['a priority below 0', { priority: -1 }, 3, 'leave half of 4 to others'],
      ['a tenant', { tenant: 'one' }, 3, 'rows of tenant "one"'],
    ])(
      '[H10] does not count what idle partitions take against the share of %s',
      async (_, options, most, message) => {
        const batcher = new HeldBatcher({ maxQueue: 4, partitions: 2, batchSize: 4 });
        for (let i = 0; i < 8 + most - 1; i++) {
          batcher.ask('a', options);
        }

        expect(() => batcher.ask('b', options)).toThrow(message);
        await runAll(batcher);
      },
    );
  });

  it('[9.3] lets no row wait for others once it drains, and still takes calls', async () => {
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

  describe('closes', () => {
    it('[9.3] after every queued row has run, open windows at once', async () => {
      const batcher = await busyBatcher({ batchTimeout: 10_000 });
      batcher.call('a', 4);

      const closed = settled(batcher.close());
      expect(await runAll(batcher)).toEqual(['0: a0 a1 a2', '0: a3']);

      expect(closed.at).toBe(Date.now());
    });

    it('[9.3] not before the batches that run have finished', async () => {
      const batcher = await busyBatcher();

      const closed = settled(batcher.close());
      await later(1000);
      expect(closed.at).toBeUndefined();

      batcher.finishBatch();
      await later();
      expect(closed.at).toBe(Date.now());
    });

    it('[9.3] at once when it is idle, however often it is asked to', async () => {
      const batcher = new HeldBatcher();

      const closed = [settled(batcher.close()), settled(batcher.close())];
      await later();

      expect(closed.map(({ at }) => at)).toEqual([Date.now(), Date.now()]);
    });

    it('[9.3] and takes no more calls', async () => {
      const batcher = new HeldBatcher();
      void batcher.close();

      expect(() => batcher.call('a')).toThrow(ServingClosedError);
      expect(() => batcher.call('a')).toThrow('Serving "held" is closed and takes no more calls');
      await later();
    });

    it('[9.3] and can abandon what is queued, not what runs', async () => {
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

  describe('reports of each batch', () => {
    it.each([
      { reason: 'full', options: { batchTimeout: 10 }, rows: 3 },
      { reason: 'full', options: {}, rows: 3 },
      { reason: 'timeout', options: { batchTimeout: 10 }, rows: 2 },
      { reason: 'idle', options: {}, rows: 2 },
    ])('[12.2] why it closed: $reason', async ({ reason, options, rows }) => {
      const batcher = new HeldBatcher(options);

      batcher.call('a', rows);
      await later(10);
      await runAll(batcher);

      expect(batcher.records.map((record) => record.reason)).toEqual([reason]);
    });

    it('[4.8] [12.2] why it closed, by the timeout that it opened with', async () => {
      const batcher = new HeldBatcher({ batchTimeout: 10 });

      batcher.call('a');
      batcher.lane('lane', { batchTimeout: 0 });
      await runAll(batcher);
      batcher.call('b');
      await runAll(batcher);

      expect(batcher.records.map(({ reason }) => reason)).toEqual(['timeout', 'idle']);
    });

    it('[12.2] why it closed: it grew full in line', async () => {
      const batcher = await busyBatcher({ batchTimeout: 10 });

      batcher.call('a', 2);
      await later(10);
      batcher.call('b');
      await runAll(batcher);

      expect(batcher.records[1]).toMatchObject({ reason: 'full' });
    });

    it('[12.2] why it closed: it was full, also where a row has left since', async () => {
      const batcher = await busyBatcher({ batchTimeout: 10 });
      batcher.call('a', 2);
      batcher.call('b').leave();

      await runAll(batcher);

      expect(batcher.records[1]).toMatchObject({ reason: 'full', rows: 2 });
    });

    it('[12.2] why it closed: drain', async () => {
      const batcher = await busyBatcher({ batchTimeout: 10 });

      batcher.call('a', 4);
      void batcher.close();
      await runAll(batcher);

      expect(batcher.records.slice(1).map(({ reason }) => reason)).toEqual(['full', 'drain']);
    });

    it('[12.2] its partition and room, how long its oldest row waited and how long it ran', async () => {
      const batcher = await busyBatcher({ batchTimeout: 10, partitions: 2 });

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

    it('[12.2] that was handed ahead the times from when the one before it had finished', async () => {
      const batcher = await busyBatcher({ prefetch: 1 });

      batcher.call('a', 3);
      await later(10);
      batcher.finishBatch();
      await later(5);
      batcher.finishBatch();
      await later();

      expect(batcher.records[1]).toMatchObject({ wait: 10, runTime: 5 });
    });

    it('[12.2] the wait of rows that come in the turn in which another batch finishes', async () => {
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

    it('[12.2] [6.1] the error that it failed with, after which the next one runs', async () => {
      const batcher = await busyBatcher();
      const error = new Error('out of memory');
      batcher.call('a');

      batcher.finishBatch(0, { error });
      await later();

      expect(batcher.records[0]).toMatchObject({ error });
      expect(await runAll(batcher)).toEqual(['0: a0']);
      expect(batcher.records[1]).not.toHaveProperty('error');
    });
  });

  it('[4.11] loses no row that is submitted while a batch is handed over', async () => {
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
    '[4.11] does as much for a row however many wait, with a timeout of %s',
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
});

/** A batcher whose partition 0 runs a batch. */
async function busyBatcher(options?: HeldBatcherOptions): Promise<HeldBatcher> {
  const batcher = new HeldBatcher(options);
  batcher.call('busy', 1, 'busy');
  await later(options?.batchTimeout);
  return batcher;
}

/**
 * Finishes what runs, batch by batch, and gives back all that ran, without what made the partition
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
