import { describe, expect, it } from '@jest/globals';
import * as fc from 'fast-check';
import {
  Admission,
  type AdmissionOptions,
  QueueRoom,
  type RoomOptions,
} from '../../../lib/core/batching/admission.js';
import type { PoolLoad } from '../../../lib/core/batching/admission.js';
import { timing } from '../../../lib/features/deadlines/deadlines.js';
import {
  DeadlineExceededError,
  DeadlineTooShortError,
  OverloadedError,
  RequestTooLargeError,
  type ServingError,
} from 'nestjs-serving';
import type { NamedRequest, NamedRequestOptions } from '../../fixtures/batching/held-batcher.js';
import { laneOf, requestOf } from '../../fixtures/batching/waiting-requests.js';

const busy: PoolLoad = { partitions: 1, idle: 0, busyUntil: () => [{ time: 0, squares: 0 }] };
const idle: PoolLoad = { partitions: 1, idle: 1, busyUntil: () => [{ time: 0, squares: 0 }] };
const lane = laneOf(10);

/** The admission to a queue whose partitions are busy by default. */
class Door extends Admission {
  readonly queue: QueueRoom;
  private readonly admitted: NamedRequest[] = [];

  constructor(options: Partial<AdmissionOptions & RoomOptions> = {}) {
    const queue = new QueueRoom({ name: 'door', maxRows: 10, ...options });
    super({ name: 'door', policies: [timing], ...options }, queue);
    this.queue = queue;
  }

  /** Admits a request. */
  ask(options: Partial<NamedRequestOptions> = {}, work = busy, now = 0): NamedRequest {
    const request = requestOf('a', { lane, ...options });
    if (request.deadline < Infinity && this.ignoresDeadlines) {
      this.heedDeadlines(this.admitted);
    }
    this.enter(request, now, work);
    this.admitted.push(request);
    return request;
  }

  /** The error with which it refuses a request. */
  refusal(
    options: Partial<NamedRequestOptions> = {},
    work = busy,
    now = 0,
  ): ServingError | undefined {
    try {
      this.ask(options, work, now);
      return undefined;
    } catch (error) {
      return error as ServingError;
    }
  }

  /** Learns that full batches of the lane take this long. */
  trained(milliseconds: number, of = lane): this {
    Array.from({ length: 8 }, () => this.learn(of.limits, of.limits.batchSize, milliseconds));
    return this;
  }
}

/** What a run may take longer than expected, as a share, after eight equal runs. */
const overrun = (0.5 * 16) / (16 + 7);

/** Milliseconds in which so many batches of 100 ms have run, overruns included. */
const after = (batches: number): number =>
  Math.ceil(100 * (batches + overrun * Math.sqrt(batches)));

describe('Admission', () => {
  it('[7.1] Admission counts the rows in the queue, and no row that has left', () => {
    const door = new Door();
    const a = door.ask({ size: 3 });
    door.ask({ size: 2 });
    expect(door.queue.rows).toBe(5);

    door.leave(a, 2);
    expect(door.queue.rows).toBe(3);
    door.enterAgain(a, 1);
    expect(door.queue.rows).toBe(4);
  });

  describe('refusals', () => {
    it('[7.1] Rows beyond the queue limit are refused with the numbers', () => {
      const door = new Door();
      door.ask({ size: 8 });

      const error = door.refusal({ size: 3 });

      expect(error).toBeInstanceOf(OverloadedError);
      expect(error?.message).toBe(
        'Serving "door" has 8 of at most 10 rows in its queue and no room for 3 more; call again later, or raise queue.maxRows',
      );
      expect(door.refusal({ size: 2 })).toBeUndefined();
      expect(door.refusal()?.message).toContain('has 10 of at most 10 rows');
    });

    it('[7.1] A call with more rows than the whole queue holds is refused as too large', () => {
      const error = new Door().refusal({ size: 11 });

      expect(error).toBeInstanceOf(RequestTooLargeError);
      expect(error?.message).toBe(
        'Serving "door" has room in its queue for 10 rows and never 11; give fewer at a time, or raise queue.maxRows',
      );
      expect(error?.retryAfter).toBeUndefined();
    });

    it('[7.1] Rows beyond the cost limit of the queue are refused', () => {
      const door = new Door({ maxCost: 100 });
      door.ask({ cost: 60, size: 3 });

      const error = door.refusal({ cost: 41 });

      expect(error).toBeInstanceOf(OverloadedError);
      expect(error?.message).toBe(
        'Serving "door" has rows in its queue that cost 60 of at most 100 and no room for 41 more; call again later, or raise queue.maxCost',
      );
      expect(door.refusal({ cost: 40 })).toBeUndefined();
    });

    it('[7.1] A call that costs more than the whole queue allows is refused as too large', () => {
      const error = new Door({ maxCost: 100 }).refusal({ cost: 101 });

      expect(error).toBeInstanceOf(RequestTooLargeError);
      expect(error?.message).toBe(
        'Serving "door" has room in its queue for a cost of 100 and never 101; give fewer at a time, or raise queue.maxCost',
      );
    });

    it('[7.4] Calls with a priority below 0 are refused when they would fill more than half of the queue', () => {
      const door = new Door();
      door.ask({ size: 4 });
      expect(door.refusal({ priority: -1 })).toBeUndefined();

      const error = door.refusal({ priority: -2 });

      expect(error).toBeInstanceOf(OverloadedError);
      expect(error?.message).toBe(
        'Serving "door" has 5 rows in its queue, of which calls of priority -2 leave half of 10 to others; call again later',
      );
      expect(door.refusal({ size: 5 })).toBeUndefined();
    });

    it('[7.4] A call with a priority below 0 and more rows than half of the queue is refused as too large', () => {
      const error = new Door({ maxRows: 11 }).refusal({ priority: -1, size: 6 }, idle);

      expect(error).toBeInstanceOf(RequestTooLargeError);
      expect(error?.message).toBe(
        'Serving "door" has room in its queue for 5 rows of a tenant, or of a priority below 0, and never 6; give fewer at a time, or raise queue.maxRows',
      );
      expect(new Door({ maxRows: 11 }).refusal({ priority: -1, size: 5 })).toBeUndefined();
    });

    it('[7.4] A call of a tenant with more rows than half of the queue is refused as too large', () => {
      const door = new Door({ maxRows: 11 });

      expect(door.refusal({ tenant: 'a', size: 6 }, idle)).toBeInstanceOf(RequestTooLargeError);
      expect(door.refusal({ tenant: 'a', size: 5 })).toBeUndefined();
    });

    it('[7.4] A tenant is refused when it would have more rows in the queue than it leaves to others', () => {
      const door = new Door();
      Array.from({ length: 5 }, () => door.ask({ tenant: 'a' }));

      const error = door.refusal({ tenant: 'a' });

      expect(error).toBeInstanceOf(OverloadedError);
      expect(error?.message).toBe(
        'Serving "door" would have 6 rows of tenant "a" in its queue and room for 4 of others, and a tenant may have no more than is left to others; call again later',
      );
      expect(door.refusal({ tenant: 'b' })).toBeUndefined();
      expect(door.refusal()).toBeUndefined();
    });

    it('[7.4] Calls without a tenant may fill the whole queue', () => {
      const door = new Door();

      expect(Array.from({ length: 10 }, () => door.refusal())).toEqual(
        Array.from({ length: 10 }, () => undefined),
      );
    });
  });

  it.each([
    { tenants: 1, share: 50 },
    { tenants: 2, share: 33 },
    { tenants: 4, share: 20 },
  ])(
    '[7.4] $tenants greedy tenants get $share of 100 places each, and one more tenant still finds room',
    (given) => {
      const door = new Door({ maxRows: 100 });
      const names = Array.from({ length: given.tenants }, (_, i) => `tenant ${i}`);
      const had = new Map(names.map((name) => [name, 0]));

      for (let i = 0; i < 100; i++) {
        names
          .filter((tenant) => !door.refusal({ tenant }))
          .forEach((tenant) => had.set(tenant, had.get(tenant)! + 1));
      }

      expect([...had.values()].every((rows) => Math.abs(rows - given.share) <= 1)).toBe(true);
      expect(door.refusal({ tenant: 'one more' })).toBeUndefined();
    },
  );

  it('[7.4] A tenant may add rows again after rows of it have left the queue', () => {
    const door = new Door();
    const requests = Array.from({ length: 5 }, () => door.ask({ tenant: 'a' }));
    expect(door.refusal({ tenant: 'a' })).toBeDefined();

    door.leave(requests[0]!, 1);

    expect(door.refusal({ tenant: 'a' })).toBeUndefined();
  });

  describe('time to retry', () => {
    it('[7.1] The time to retry is the expected run time of the excess rows on all available partitions', () => {
      const door = new Door({ maxRows: 100 }).trained(4000);
      door.ask({ size: 100 });

      const seconds = (size: number, partitions: number) =>
        door.refusal({ size }, { ...busy, partitions })?.retryAfter;

      expect([
        seconds(10, 1),
        seconds(20, 1),
        seconds(21, 1),
        seconds(20, 2),
        seconds(20, 0),
      ]).toEqual([4, 8, 9, 4, 8]);
    });

    it('[7.1] [H9] The time to retry is a spread of a few seconds until a batch has run, and measured from the first one on', () => {
      const door = new Door({ maxRows: 100 });
      door.ask({ size: 100 });
      const seconds = Array.from({ length: 100 }, () => door.refusal({ size: 30 })!.retryAfter);
      expect(new Set(seconds)).toEqual(new Set([1, 2, 3]));

      door.learn(lane.limits, 10, 2000);
      expect(door.refusal({ size: 30 })?.retryAfter).toBe(6);
    });

    it('[7.1] The time to retry is at least one second', () => {
      const door = new Door({ maxRows: 20 }).trained(10);
      door.ask({ size: 20 });
      expect(door.refusal()?.retryAfter).toBe(1);
    });

    it('[7.1] The time to retry follows the share of the rows that cost too much', () => {
      const door = new Door({ maxRows: 100, maxCost: 100 }).trained(1000);
      door.ask({ size: 50, cost: 100 });

      expect(door.refusal({ cost: 20 })?.retryAfter).toBe(1);
      expect(door.refusal({ cost: 60 })?.retryAfter).toBe(3);
    });

    it('[7.4] The time to retry follows the rows that a tenant or a low priority has beyond its share', () => {
      const door = new Door({ maxRows: 100 }).trained(1000);
      door.ask({ size: 50, tenant: 'a' });

      expect(door.refusal({ size: 25, tenant: 'a' })?.retryAfter).toBe(3);
      expect(door.refusal({ size: 40, priority: -1 })?.retryAfter).toBe(4);
    });
  });

  describe('deadlines', () => {
    it.each([
      ['idle', idle],
      ['busy', busy],
    ])(
      '[M7] A call whose deadline has passed is refused with a deadline error while the partitions are %s',
      (_, work) => {
        const error = new Door().trained(100).refusal({ deadline: 990 }, work, 1000);

        expect(error).toBeInstanceOf(DeadlineExceededError);
        expect(error?.message).toContain('had passed 10 ms before it came');
      },
    );

    it('[7.1] A call that cannot be answered before its deadline is refused with the time that it needs', () => {
      const door = new Door({ maxRows: 100 }).trained(100);
      door.ask({ size: 20 });

      // Two queued batches, its own, and what three runs may take longer.
      const needed = 300 + overrun * 100 * Math.sqrt(3);
      const error = door.refusal({ deadline: 1000 + needed - 1 }, busy, 1000);

      expect(error).toBeInstanceOf(DeadlineTooShortError);
      expect(error?.message).toBe(
        'Serving "door" would need about 361 ms to answer and the call has 359 ms; call again later, or with a longer timeout',
      );
      expect(error?.retryAfter).toBe(1);
      expect(door.queue.rows).toBe(20);
      expect(door.refusal({ deadline: 1000 + needed }, busy, 1000)).toBeUndefined();
    });

    it('[7.1] The expected time of a call counts running rows, queued rows and its own, over all available partitions', () => {
      const door = new Door({ maxRows: 100 }).trained(100);
      const work: PoolLoad = {
        ...busy,
        partitions: 2,
        idle: 0,
        busyUntil: (now) => [
          { time: 1060 - now, squares: 100 ** 2 },
          { time: 0, squares: 0 },
        ],
      };
      door.ask({ size: 20 });

      // Of the two queued batches and the four of the call, the partition that is free runs three in
      // 300 ms, and the other one two after its 60 ms. The last one ends after 360 ms.
      const needed = 360 + overrun * 100 * Math.sqrt(4);
      expect(
        door.refusal({ size: 40, deadline: 1000 + needed - 1 }, work, 1000)?.message,
      ).toContain(`about ${Math.ceil(needed)} ms`);
      expect(door.refusal({ size: 40, deadline: 1001 + needed }, work, 1000)).toBeUndefined();
    });

    it('[7.1] [A4] Rows ahead that share the batch of a call are no batch before it', () => {
      const door = new Door({ maxRows: 100 }).trained(100);
      [1, 2, 4, 8].forEach((rows) => door.learn(lane.limits, rows, 100));
      door.ask({ size: 9, deadline: 1000 });

      // Its batch, and what that may take longer.
      expect(door.refusal({ deadline: 99 })).toBeDefined();
      expect(door.refusal({ deadline: 101 + 100 * overrun })).toBeUndefined();
    });

    it('[7.1] A call with exactly the time that it needs is admitted', () => {
      const door = new Door().trained(1);
      const work: PoolLoad = { ...busy, busyUntil: () => [{ time: 60, squares: 0 }] };
      const needed = 60 + 1 + overrun;

      expect(door.refusal({ deadline: needed - 0.1 }, work)).toBeInstanceOf(DeadlineTooShortError);
      expect(door.refusal({ deadline: needed }, work)).toBeUndefined();
    });

    it('[7.1] A call that is too short of time may retry when enough of the queue has run', () => {
      const door = new Door({ maxRows: 1000 }).trained(1000);
      door.ask({ size: 60 });

      expect(door.refusal({ deadline: 2500 })?.retryAfter).toBe(6);
    });

    it('[7.1] Calls with a deadline are admitted while the batch times of their lane or of queued lanes are unknown', () => {
      const slow = laneOf(10);
      const door = new Door({ maxRows: 1000 });
      door.ask({ size: 500 });
      expect(door.refusal({ deadline: 1 })).toBeUndefined();

      Array.from({ length: 7 }, () => door.learn(lane.limits, 10, 1000));
      expect(door.refusal({ deadline: 1 })).toBeUndefined();
      door.learn(lane.limits, 10, 1000);
      expect(door.refusal({ deadline: 1 })).toBeInstanceOf(DeadlineTooShortError);

      door.ask({ lane: slow });
      expect(door.refusal({ deadline: 1 })).toBeUndefined();
      door.trained(1, slow);
      expect(door.refusal({ deadline: 1 })).toBeInstanceOf(DeadlineTooShortError);
    });

    it('[7.1] A lane with unknown batch times and no queued rows does not prevent refusals', () => {
      const unknown = laneOf(10);
      const door = new Door({ maxRows: 100 }).trained(100);
      const request = door.ask({ lane: unknown, size: 2 });
      door.ask({ size: 10 });
      expect(door.refusal({ deadline: 1 })).toBeUndefined();

      door.leave(request, 2);

      expect(door.refusal({ deadline: 1 })).toBeInstanceOf(DeadlineTooShortError);
    });

    it('[7.1] The first call that finds an idle partition is admitted, since batch times may have changed', () => {
      const door = new Door().trained(1_000_000);

      expect(door.refusal({ deadline: 1 }, idle)).toBeUndefined();
      expect(door.refusal({ deadline: 1 }, idle)).toBeInstanceOf(DeadlineTooShortError);
    });

    it('[7.1] No call is refused for its deadline while all partitions are unavailable, since their return is unpredictable', () => {
      const door = new Door().trained(1000);
      door.ask();

      expect(door.refusal({ deadline: 1 }, { ...busy, partitions: 0 })).toBeUndefined();
    });

    it('[7.4] The expected time of a call counts queued rows of higher or the same priority', () => {
      const door = new Door({ maxRows: 2000 }).trained(100);
      door.ask({ size: 100, priority: 1 });
      door.ask({ size: 200 });
      door.ask({ size: 300, priority: -1 });

      const needed = [2, 1, 0, -1].map(
        (priority) => /about (\d+) ms/.exec(door.refusal({ priority, deadline: 1 })!.message)?.[1],
      );

      expect(needed).toEqual([1, 11, 31, 61].map((batches) => String(after(batches))));
    });

    it('[7.4] The expected time of a call counts as many rows of each other tenant as of its own', () => {
      const door = new Door({ maxRows: 100_000 }).trained(100);
      door.ask({ size: 5000, tenant: 'many' });
      door.ask({ size: 10, tenant: 'few' });
      const needed = (tenant: string, size = 10) =>
        Number(/about (\d+) ms/.exec(door.refusal({ tenant, size, deadline: 1 })!.message)?.[1]);
      // Its own batch, and a batch of each of the others.
      expect(needed('one')).toBe(after(3));
      expect(needed('few')).toBe(after(4));
      expect(needed('many')).toBe(after(502));
      expect(needed('', 1)).toBe(after(1.2));
    });

    it('[7.1] Batch times are learned separately for lanes with different limits', () => {
      const large = laneOf(100);
      const door = new Door({ maxRows: 1000 }).trained(10).trained(5000, large);
      door.ask({ lane: large, size: 100 });
      door.ask({ size: 10 });

      // The batches of both lanes and its own, and what they may take longer.
      const needed = 5020 + overrun * Math.sqrt(5000 ** 2 + 2 * 10 ** 2);
      expect(door.refusal({ deadline: needed - 1 })).toBeInstanceOf(DeadlineTooShortError);
      expect(door.refusal({ deadline: needed + 1 })).toBeUndefined();
    });
  });

  it('[7.1] The time of a batch is predicted from the eighth batch on', () => {
    const door = new Door();
    expect(door.timeOf(lane.limits, 10)).toBeUndefined();

    expect(door.trained(25).timeOf(lane.limits, 10)).toBeCloseTo(25);
    expect(door.timeOf(laneOf(10).limits, 10)).toBeUndefined();
  });

  it('[7.1] The queue has all of its room again after all requests have left, in any order of arrival and departure', () => {
    const aRequest = fc.record({
      size: fc.integer({ min: 1, max: 4 }),
      cost: fc.double({ min: 0, max: 3, noNaN: true }),
      priority: fc.integer({ min: -1, max: 1 }),
      tenant: fc.constantFrom('', 'a', 'b'),
    });
    const step = fc.record({ request: aRequest, leaves: fc.nat(10), again: fc.boolean() });
    fc.assert(
      fc.property(fc.array(step, { maxLength: 40 }), (steps) => {
        const door = new Door({ maxRows: 20, maxCost: 20 });
        const inside: { request: NamedRequest; waiting: number }[] = [];
        for (const { request: options, leaves, again } of steps) {
          const before = door.queue.rows;
          try {
            inside.push({ request: door.ask(options), waiting: options.size });
          } catch (error) {
            expect(error).toBeInstanceOf(OverloadedError);
            expect(door.queue.rows).toBe(before);
          }
          const left = inside[leaves];
          if (left) {
            const rows = Math.min(left.waiting, 1 + (leaves % 3));
            door.leave(left.request, rows);
            door.enterAgain(left.request, again ? rows : 0);
            left.waiting -= again ? 0 : rows;
          }
          expect(door.queue.rows).toBe(inside.reduce((sum, { waiting }) => sum + waiting, 0));
        }
        inside.forEach(({ request, waiting }) => door.leave(request, waiting));

        expect(door.queue.rows).toBe(0);
        expect(door.refusal({ size: 20, cost: 20 })).toBeUndefined();
        expect(door.refusal()).toBeInstanceOf(OverloadedError);
      }),
    );
  });

  it('[7.1] The cost of the queue is exactly 0 when it is empty, despite rounding errors', () => {
    const door = new Door({ maxCost: 1 });
    for (let i = 0; i < 50; i++) {
      const request = door.ask({ size: 7, cost: 1 });
      Array.from({ length: 7 }, () => door.leave(request, 1));
    }

    expect(door.refusal({ cost: 1 })).toBeUndefined();
  });

  it('[7.1] The queue never exceeds its limit and never refuses a request that fits', () => {
    fc.assert(
      fc.property(fc.array(fc.integer({ min: 1, max: 12 }), { maxLength: 30 }), (sizes) => {
        const door = new Door();
        for (const size of sizes) {
          const before = door.queue.rows;
          expect(door.refusal({ size }) === undefined).toBe(before + size <= 10);
          expect(door.queue.rows).toBeLessThanOrEqual(10);
        }
      }),
    );
  });
});
