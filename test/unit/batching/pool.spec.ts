import { describe, expect, it } from '@jest/globals';
import { PartitionLostError } from 'nestjs-serving';
import { type TargetLoad, Pool, type Target } from '../../../lib/core/batching/pool.js';

const gone = new PartitionLostError('gone');

type State = { -readonly [Name in keyof Target]: Target[Name] };
const slotsOf = (...prefetch: number[]): State[] => prefetch.map((ahead) => ({ prefetch: ahead }));

/** Takes the partition for the batch. */
function start(pool: Pool, batch: 'full' | 'growing' = 'full', expected = 0, now = 0): TargetLoad {
  const load = pool.next(batch, now)!;
  pool.start(load, expected, now);
  return load;
}

/** Ends the oldest batch of the partition. */
const end = (pool: Pool, load: TargetLoad, now: number): number =>
  pool.end(load, load.batches[0]!, now);

describe('Pool', () => {
  it('[5.1] The pool gives the partition that has been idle longest', () => {
    const pool = new Pool(slotsOf(0, 0, 0));
    const loads = [start(pool), start(pool), start(pool)];
    expect(loads.map(({ partition }) => partition)).toEqual([0, 1, 2]);
    expect(pool.next('full', 0)).toBeUndefined();

    [2, 0, 1].forEach((partition, now) => end(pool, loads[partition]!, now));

    expect([start(pool), start(pool), start(pool)].map(({ partition }) => partition)).toEqual([
      2, 0, 1,
    ]);
  });

  it('[5.5] The pool hands full batches ahead to busy partitions, up to their limits, when no partition is idle', () => {
    const pool = new Pool(slotsOf(1, 0));
    const given = [start(pool), start(pool), start(pool)].map(({ partition }) => partition);

    expect(given).toEqual([0, 1, 0]);
    expect(pool.next('full', 0)).toBeUndefined();
  });

  it('[W13] The pool hands a full batch ahead to the busy partition that is expected free first', () => {
    const pool = new Pool(slotsOf(1, 1, 1));
    [30, 10, 20].forEach((expected) => start(pool, 'full', expected));

    expect(Array.from({ length: 3 }, () => start(pool, 'full', 100, 5).partition)).toEqual([
      1, 2, 0,
    ]);
    expect(pool.next('full', 5)).toBeUndefined();
  });

  it('[W13] For each idle partition the pool revokes a batch from the partition that will be busy longest', () => {
    const given: number[] = [];
    const pool = new Pool(
      [0, 1, 2].map((partition) => ({ prefetch: 1, revoke: () => given.push(partition) })),
    );
    const loads = [30, 10, 20].map((expected) => start(pool, 'full', expected));
    start(pool, 'full', 5);
    pool.revoke(0);
    expect(given).toEqual([]);

    start(pool, 'full', 5);
    const ended = loads.find(({ batches }) => batches.length === 1)!;
    end(pool, ended, 6);
    pool.revoke(6);
    expect(given).toEqual([2]);
    expect(ended.partition).toBe(0);
  });

  it('[W13] The running batch goes on when the batch behind it is revoked', () => {
    const pool = new Pool(slotsOf(1));
    const load = start(pool, 'full', 30, 5);
    start(pool, 'full', 40, 6);
    expect(pool.endOf(load, 10)).toBe(75);

    expect(pool.end(load, load.batches[1]!, 10)).toBe(10);
    expect(pool.endOf(load, 10)).toBe(35);
    expect(end(pool, load, 40)).toBe(5);
  });

  it('[5.5] The pool gives a batch that can still grow only to idle partitions', () => {
    const pool = new Pool(slotsOf(1));
    const load = start(pool, 'growing');
    expect(pool.next('growing', 0)).toBeUndefined();
    expect(pool.next('full', 0)).toBe(load);

    end(pool, load, 1);
    expect(pool.next('growing', 0)).toBe(load);
  });

  it.each(['unavailable', 'lost'] as const)(
    '[5.6] The pool gives no batch to a partition that is %s until it is back',
    (state) => {
      const slots = slotsOf(1, 1);
      const pool = new Pool(slots);
      slots[0]![state] = gone;
      expect([start(pool), start(pool)].map(({ partition }) => partition)).toEqual([1, 1]);
      expect(pool.next('full', 0)).toBeUndefined();

      slots[0]![state] = undefined;
      expect(pool.next('growing', 0)?.partition).toBe(0);
    },
  );

  it('[5.6] The pool hands nothing ahead to a busy partition that became unavailable', () => {
    const slots = slotsOf(1);
    const pool = new Pool(slots);
    start(pool);

    slots[0]!.unavailable = gone;
    expect(pool.next('full', 0)).toBeUndefined();

    slots[0]!.unavailable = undefined;
    expect(pool.next('full', 0)?.partition).toBe(0);
  });

  it('[5.6] The pool is lost when all partitions are lost, and not while one is expected back', () => {
    const slots = slotsOf(0, 0);
    const pool = new Pool(slots);
    const later = new PartitionLostError('gone later');
    expect(pool.lost).toBeUndefined();

    slots[1]!.lost = later;
    expect(pool.lost).toBeUndefined();
    slots[0]!.unavailable = gone;
    expect(pool.lost).toBeUndefined();
    slots[0]!.lost = gone;
    expect(pool.lost).toBe(gone);
  });

  it('[7.1] The pool counts the available partitions and the idle ones among them', () => {
    const slots = slotsOf(0, 0, 0);
    const pool = new Pool(slots);
    expect([pool.partitions, pool.idle > 0, pool.isIdle]).toEqual([3, true, true]);
    slots[0]!.unavailable = gone;
    expect([pool.partitions, pool.idle > 0]).toEqual([2, true]);
    slots[0]!.unavailable = undefined;

    start(pool);
    expect([pool.partitions, pool.idle > 0, pool.isIdle]).toEqual([3, true, false]);
    slots[1]!.unavailable = gone;
    slots[2]!.lost = gone;
    expect([pool.partitions, pool.idle > 0]).toEqual([1, false]);
  });

  it('[9.3] The pool is idle when no batch runs, whether or not its partitions are available', () => {
    const slots = slotsOf(1);
    const pool = new Pool(slots);
    const load = start(pool);
    start(pool);
    slots[0]!.lost = gone;

    end(pool, load, 1);
    expect(pool.isIdle).toBe(false);
    end(pool, load, 2);
    expect(pool.isIdle).toBe(true);
  });

  it('[7.1] The pool predicts the remaining time of running batches, and counts 0 for batches that are overdue', () => {
    const pool = new Pool(slotsOf(1, 0));
    const load = start(pool, 'full', 10, 100);
    start(pool, 'full', 25, 100);
    expect(restOf(pool, 104)).toBe(6 + 21);

    start(pool, 'full', 10, 104);
    expect(restOf(pool, 104)).toBe(16 + 21);
    // The first is overdue, and the second begins when it ends.
    expect(restOf(pool, 115)).toBe(10 + 10);
    expect(restOf(pool, 300)).toBe(10);

    end(pool, load, 108);
    end(pool, load, 112);
    expect(restOf(pool, 112)).toBe(13);
  });

  it('[12.2] A batch begins when it is handed over, or when the batch before it has ended', () => {
    const pool = new Pool(slotsOf(1));
    const load = start(pool, 'full', 0, 5);
    start(pool, 'full', 0, 6);

    expect(end(pool, load, 20)).toBe(5);
    expect(end(pool, load, 30)).toBe(20);
    start(pool, 'full', 0, 40);
    expect(end(pool, load, 50)).toBe(40);
  });

  it('[7.1] [7.2] The predicted end of a batch counts from its real begin, not from earlier predictions', () => {
    const pool = new Pool([{ prefetch: 1 }]);
    const load = pool.next('full', 0)!;
    pool.start(load, 10, 0);
    expect(pool.endOf(load, 0)).toBe(10);
    for (let now = 0; now < 100; now += 5) {
      pool.start(load, 10, now);
      expect(pool.endOf(load, now)).toBe(now + 20);
      expect(end(pool, load, now + 5)).toBe(now);
    }
    expect(pool.endOf(load, 100)).toBe(110);
    expect(restOf(pool, 104)).toBe(6);
    expect(restOf(pool, 130)).toBe(0);
  });

  it('[7.2] An idle partition has no remaining time', () => {
    const pool = new Pool([{ prefetch: 1 }, { prefetch: 0 }]);
    const load = pool.next('full', 0)!;
    pool.start(load, 10, 0);
    end(pool, load, 7);

    expect(pool.endOf(load, 20)).toBe(20);
    expect(restOf(pool, 20)).toBe(0);
    expect(pool.isIdle).toBe(true);
  });

  it('[13.1] A partition with capacity takes as many batches at once, and the one with the most free capacity is next', () => {
    const pool = new Pool([2, 3].map((capacity) => ({ prefetch: 0, capacity })));
    const given = Array.from({ length: 5 }, () => start(pool, 'growing').partition);

    expect(given).toEqual([1, 0, 1, 0, 1]);
    expect(pool.next('full', 0)).toBeUndefined();
    expect(pool.idle).toBe(0);
  });

  it('[13.1] A place is free when its batch ends, in any order, and each batch has its own run time', () => {
    const pool = new Pool([{ prefetch: 0, capacity: 2 }]);
    const load = pool.next('full', 0)!;
    const [first, second] = [10, 20].map((now) => pool.start(load, 0, now));
    expect(pool.idle).toBe(0);

    expect(pool.end(load, second!, 50)).toBe(20);
    expect(pool.idle).toBe(1);
    expect(pool.next('full', 50)).toBe(load);
    expect(pool.end(load, first!, 60)).toBe(10);
    expect(pool.isIdle).toBe(true);
  });

  it('[13.1] A partition with capacity that is lost or unavailable takes no batch', () => {
    const [first, second]: State[] = [2, 2].map((capacity) => ({ prefetch: 0, capacity }));
    const pool = new Pool([first!, second!]);
    [start(pool), start(pool)].forEach(() => {});
    first!.lost = gone;

    expect([start(pool).partition, pool.next('full', 0)]).toEqual([1, undefined]);
    expect(pool.idle).toBe(0);
  });

  it('[13.1] The batches of a partition with capacity are never revoked for an idle partition', () => {
    const given: number[] = [];
    const pool = new Pool(
      [0, 1].map((partition) => ({
        prefetch: 0,
        capacity: 2,
        revoke: () => given.push(partition),
      })),
    );
    const load = pool.next('full', 0)!;
    [0, 1].forEach((now) => pool.start(load, 0, now));

    expect(pool.isUneven).toBe(false);
    pool.revoke(2);
    expect(given).toEqual([]);
  });
});

/** Expected milliseconds until the running batches have ended, summed over all partitions. */
function restOf(pool: Pool, now: number): number {
  return pool.busyUntil(now).reduce((sum, { time }) => sum + time, 0);
}
