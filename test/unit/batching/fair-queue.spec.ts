import { describe, expect, it } from '@jest/globals';
import * as fc from 'fast-check';
import { FairQueue } from '../../../lib/core/batching/fair-queue.js';
import { type NamedRequest, namesOf } from '../../fixtures/batching/held-batcher.js';
import { allOf, requestOf } from '../../fixtures/batching/waiting-requests.js';

const queueOf = (weights: Readonly<Record<string, number>> = {}): FairQueue<NamedRequest> =>
  new FairQueue(new Map(Object.entries(weights)));

/** Requests of a tenant with these numbers of rows, named a0, a1 and so on for tenant a. */
function fill(
  queue: FairQueue<NamedRequest>,
  tenant: string,
  sizes: readonly number[],
): NamedRequest[] {
  return sizes.map((size, i) => {
    const request = requestOf(`${tenant}${i}.`, { tenant, size });
    queue.add(allOf(request));
    return request;
  });
}

/** Takes batches of this many rows until nothing is left or the given number of times. */
function takeAll(
  queue: FairQueue<NamedRequest>,
  room = Infinity,
  times = Infinity,
  now = 0,
): string[] {
  const taken: string[] = [];
  while (taken.length < times && queue.peek(now)) {
    const part = queue.take(room, 0);
    if (!part) {
      break;
    }
    taken.push(namesOf([part]));
  }
  return taken;
}

/** A request that expires when it is read after its deadline. */
function lateAt(name: string, deadline: number, tenant = ''): NamedRequest {
  return requestOf(name, { deadline, tenant });
}

describe('FairQueue', () => {
  it('[4.4] Rows of one tenant leave the queue in their order of arrival', () => {
    const queue = queueOf();
    fill(queue, 'a', [1, 2, 1]);

    expect(takeAll(queue)).toEqual(['a0.0', 'a1.0 a1.1', 'a2.0']);
    expect(queue.peek(0)).toBeUndefined();
  });

  it('[4.5] A request larger than the room is taken in parts, the rest of it next', () => {
    const queue = queueOf();
    fill(queue, 'a', [5, 1]);

    expect(takeAll(queue, 2)).toEqual(['a0.0 a0.1', 'a0.2 a0.3', 'a0.4', 'a1.0']);
  });

  it('[8.3] A request that must run whole is taken whole or not at all', () => {
    const queue = queueOf();
    queue.add(allOf(requestOf('w', { size: 3, whole: true })));
    fill(queue, '', [1]);

    queue.peek(0);
    expect(queue.take(2, 0)).toBeUndefined();
    expect(takeAll(queue, 3)).toEqual(['w0 w1 w2', '0.0']);
  });

  it('[8.3] [7.4] A whole request whose rows were added in two parts is not split by a row of another tenant', () => {
    const queue = queueOf();
    const whole = requestOf('w', { size: 3, whole: true });
    queue.add({ request: whole, offset: 0, count: 1 });
    queue.add({ request: whole, offset: 1, count: 2 });
    fill(queue, 'other', [1]);

    expect(takeAll(queue, 3)).toEqual(['w0 w1 w2', 'other0.0']);
  });

  it('[7.4] Many rows of one tenant delay a row of another tenant by one turn at most', () => {
    const queue = queueOf();
    fill(queue, 'many', [5000]);
    expect(takeAll(queue, 32, 10)).toHaveLength(10);

    fill(queue, 'one', [1]);

    expect(takeAll(queue, 32, 2)[0]).toBe('one0.0');
  });

  it('[7.4] [4.4] Tenants that have had equal shares take turns in their order of arrival', () => {
    const queue = queueOf();
    const tenants = Array.from({ length: 50 }, (_, i) => `t${i}-`);
    tenants.forEach((tenant) => fill(queue, tenant, [1, 1]));
    const late = ['x', 'y'];

    const rows = takeAll(queue, 1, 20);
    late.forEach((tenant) => fill(queue, tenant, [1]));
    rows.push(...takeAll(queue, 1));

    const first = tenants.map((tenant) => `${tenant}0.0`);
    const second = tenants.map((tenant) => `${tenant}1.0`);
    expect(rows).toEqual([...first, 'x0.0', 'y0.0', ...second]);
  });

  it('[7.4] Tenants get shares by their weights, and a tenant without a weight counts as 1', () => {
    const queue = queueOf({ gold: 3, iron: 0.5 });
    ['gold', 'iron', 'other'].forEach((tenant) =>
      fill(
        queue,
        tenant,
        Array.from({ length: 100 }, () => 1),
      ),
    );

    const rows = takeAll(queue, 1, 90);

    const shares = ['gold', 'iron', 'other'].map(
      (tenant) => rows.filter((row) => row.startsWith(tenant)).length,
    );
    expect(shares).toEqual([60, 10, 20]);
  });

  it('[7.4] A tenant that arrives late gets no credit for the time before', () => {
    const queue = queueOf();
    fill(queue, 'a', [100]);
    takeAll(queue, 1, 50);
    fill(queue, 'b', [100]);

    const rows = takeAll(queue, 1, 20);

    expect(rows.filter((row) => row.startsWith('a')).length).toBeGreaterThanOrEqual(9);
  });

  it('[7.4] A tenant that leaves and returns gets no credit for its absence', () => {
    const queue = queueOf({ returns: 4 });
    fill(queue, 'stays', [1000]);

    const turns: string[] = ['returns'];
    for (let turn = 0; turn < 50; turn++) {
      if (turns.at(-1) === 'returns') {
        fill(queue, 'returns', [16]);
      }
      const { request } = queue.peek(0)!;
      queue.take(16, 0);
      turns.push(request.tenant);
      // A look at the next row for which there is no partition yet.
      queue.peek(0);
    }

    expect(turns.filter((tenant) => tenant === 'stays').length).toBeGreaterThanOrEqual(10);
  });

  it('[7.4] A tenant that arrives at an empty queue gets no credit', () => {
    const queue = queueOf();
    fill(queue, 'a', [30]);
    takeAll(queue);

    fill(queue, 'b', [20]);
    fill(queue, 'a', [20]);

    expect(takeAll(queue, 1, 10).filter((row) => row.startsWith('b'))).toHaveLength(5);
  });

  it('[7.4] No tenant gets more or less than one turn beyond its share while several have rows', () => {
    const aTenant = fc.record({
      weight: fc.double({ min: 0.1, max: 10, noNaN: true }),
      sizes: fc.array(fc.integer({ min: 1, max: 40 }), { minLength: 1, maxLength: 12 }),
    });
    fc.assert(
      fc.property(
        fc.array(aTenant, { minLength: 2, maxLength: 5 }),
        fc.integer({ min: 1, max: 32 }),
        (tenants, room) => {
          const queue = queueOf(
            Object.fromEntries(tenants.map(({ weight }, i) => [`t${i}-`, weight])),
          );
          tenants.forEach(({ sizes }, i) => fill(queue, `t${i}-`, sizes));
          const left = tenants.map(({ sizes }) => sizes.reduce((sum, size) => sum + size, 0));
          const had = tenants.map(() => 0);
          while (left.every((rows) => rows > 0)) {
            queue.peek(0);
            const part = queue.take(room, 0)!;
            const index = tenants.findIndex((_, i) => part.request.tenant === `t${i}-`);
            had[index]! += part.count / tenants[index]!.weight;
            left[index]! -= part.count;
            // The bound of start-time fair queueing.
            const turns = tenants.map(({ weight }) => room / weight).toSorted((a, b) => b - a);
            expect(Math.max(...had) - Math.min(...had)).toBeLessThanOrEqual(
              turns[0]! + turns[1]! + 1e-9,
            );
          }
        },
      ),
    );
  });

  it('[4.6] [7.3] Each row is taken once and in order per tenant, and no row of a cancelled request is taken', () => {
    const step = fc.record({
      do: fc.constantFrom('add', 'add', 'take', 'take', 'leave', 'sweep', 'late'),
      tenant: fc.constantFrom('a', 'b', 'c'),
      size: fc.integer({ min: 1, max: 5 }),
      whole: fc.boolean(),
    });
    fc.assert(
      fc.property(fc.array(step, { maxLength: 60 }), (steps) => {
        const queue = queueOf({ a: 2 });
        const requests: NamedRequest[] = [];
        const taken = new Map<NamedRequest, number>();
        let now = 0;
        const take = (room: number): void => {
          const next = queue.peek(now);
          const part = next && queue.take(room, 0);
          if (part) {
            const { request, offset, count } = part;
            expect(part.request).toBe(next.request);
            expect([request.isOver, request.deadline > now]).toEqual([false, true]);
            expect(offset).toBe(taken.get(request) ?? 0);
            expect(count).toBeLessThanOrEqual(room);
            expect(!request.whole || count === request.size).toBe(true);
            const before = requests.filter(({ tenant }) => tenant === request.tenant).slice(0, -1);
            const earlier = before.slice(0, Math.max(0, before.indexOf(request)));
            expect(
              earlier.filter((other) => !other.isOver && (taken.get(other) ?? 0) < other.size),
            ).toEqual([]);
            taken.set(request, offset + count);
          }
        };
        for (const { do: what, tenant, size, whole } of steps) {
          now++;
          if (what === 'add' || what === 'late') {
            const deadline = what === 'late' ? now + 3 : Infinity;
            const request = requestOf(`${requests.length}.`, { tenant, size, whole, deadline });
            requests.push(request);
            queue.add(allOf(request));
          } else if (what === 'take') {
            take(size);
          } else if (what === 'sweep') {
            queue.sweep();
          } else {
            requests.find((request) => request.tenant === tenant && !request.isOver)?.leave();
          }
        }
        while (queue.peek(now)) {
          take(5);
        }
        const missed = requests.filter(
          (request) => !request.isOver && taken.get(request) !== request.size,
        );
        expect(missed).toEqual([]);
      }),
    );
  });

  it('[7.2] A row whose deadline has passed is expired when its turn comes, and the next row is taken', () => {
    const queue = queueOf();
    const [early, late] = [lateAt('early', 10), lateAt('late', 11)];
    [early, late, requestOf('any')].forEach((request) => queue.add(allOf(request)));

    expect(takeAll(queue, 1, 1, 10)).toEqual(['late0']);
    expect([early.isOver, early.error, late.isOver]).toEqual([
      true,
      expect.objectContaining({ message: 'too late' }),
      false,
    ]);
    expect(takeAll(queue)).toEqual(['any0']);
  });

  it('[7.3] Rows of cancelled requests are not taken, for any tenant', () => {
    const queue = queueOf();
    const left = ['a', 'b', 'c'].flatMap((tenant) => fill(queue, tenant, [1, 1]));
    const [stays] = fill(queue, 'b', [1]);
    left.forEach((request) => request.leave());

    expect(queue.peek(0)?.request).toBe(stays);
    expect(takeAll(queue)).toEqual(['b0.0']);
  });

  it('[7.3] Sweeping removes cancelled requests and keeps the order of the others', () => {
    const queue = queueOf();
    const requests = ['a', 'b'].flatMap((tenant) => fill(queue, tenant, [1, 2, 1]));
    [requests[0], requests[4]].forEach((request) => request!.leave());
    expect([...queue]).toHaveLength(6);

    queue.sweep();

    expect([...queue].map((part) => namesOf([part]))).toEqual([
      'a1.0 a1.1',
      'a2.0',
      'b0.0',
      'b2.0',
    ]);
    expect(takeAll(queue, 2).toSorted()).toEqual(['a1.0 a1.1', 'a2.0', 'b0.0', 'b2.0']);
  });

  it('[7.3] Sweeping while a row expires loses no row', () => {
    const queue = queueOf();
    const sweeping = lateAt('sweeping', 5);
    sweeping.expire = () => {
      sweeping.isOver = true;
      queue.sweep();
    };
    [sweeping, requestOf('a'), requestOf('b')].forEach((request) => queue.add(allOf(request)));
    const other = requestOf('c', { tenant: 'other' });
    queue.add(allOf(other));

    expect(takeAll(queue, 1, Infinity, 10).toSorted()).toEqual(['a0', 'b0', 'c0']);
  });

  it('[7.2] [7.3] Sweeping while the last row of a tenant expires loses no row of other tenants', () => {
    const queue = queueOf();
    const last = lateAt('last', 5, 'late');
    last.expire = () => {
      last.isOver = true;
      queue.sweep();
    };
    [last, requestOf('a', { tenant: 'a' }), requestOf('b', { tenant: 'b' })].forEach((request) =>
      queue.add(allOf(request)),
    );

    expect(takeAll(queue, 1, Infinity, 10)).toEqual(['a0', 'b0']);
  });

  it('[7.3] A cancelled request does not expire', () => {
    const queue = queueOf();
    const left = lateAt('left', 5);
    queue.add(allOf(left));
    left.leave();

    expect(queue.peek(10)).toBeUndefined();
    expect(left.error).toBeUndefined();
  });

  it('[7.2] The queue reports for any tenant whether a row has a deadline after a given time', () => {
    const queue = queueOf();
    expect(queue.hasRowsAfter(0)).toBe(false);

    const requests = [lateAt('a', 10), lateAt('b', 20), lateAt('c', 30, 'other')];
    requests.forEach((request) => queue.add(allOf(request)));
    expect([9, 19, 29, 30].map((time) => queue.hasRowsAfter(time))).toEqual([
      true,
      true,
      true,
      false,
    ]);

    requests[2]!.leave();
    expect([19, 20].map((time) => queue.hasRowsAfter(time))).toEqual([true, false]);
  });

  it('[7.3] A tenant whose rows were all swept leaves no state behind', () => {
    const { queue, asked } = asking();
    const tenants = Array.from({ length: 5000 }, (_, i) => `tenant ${i}`);
    tenants.forEach((tenant) => fill(queue, tenant, [1])[0]!.leave());

    queue.sweep();
    tenants.forEach((tenant) => fill(queue, tenant, [1]));

    expect(asked).toHaveLength(10_000);
    expect(takeAll(queue)).toHaveLength(5000);
  });

  it('[7.4] A tenant whose rows have all run leaves no state behind while others wait', () => {
    const { queue, asked } = asking();
    const tenants = Array.from({ length: 5000 }, (_, i) => `tenant ${i}`);
    tenants.forEach((tenant) => fill(queue, tenant, [1]));

    takeAll(queue);
    tenants.forEach((tenant) => fill(queue, tenant, [1]));

    // All but the last.
    expect(asked).toHaveLength(9999);
  });
});

/** A queue, and the tenants whose weight it has read because it had no state of them. */
function asking(): { readonly queue: FairQueue<NamedRequest>; readonly asked: readonly string[] } {
  const asked: string[] = [];
  class Weights extends Map<string, number> {
    override get(tenant: string): undefined {
      asked.push(tenant);
      return undefined;
    }
  }
  return { queue: new FairQueue(new Weights()), asked };
}
