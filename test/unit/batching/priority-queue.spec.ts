import { describe, expect, it } from '@jest/globals';
import * as fc from 'fast-check';
import { PriorityQueue } from '../../../lib/core/batching/priority-queue.js';
import {
  type NamedRequest,
  type NamedRequestOptions,
  namesOf,
} from '../../fixtures/batching/held-batcher.js';
import { allOf, requestOf } from '../../fixtures/batching/waiting-requests.js';

interface Ask extends Partial<NamedRequestOptions> {
  readonly arrivedAt?: number;
}

class NamedBacklog extends PriorityQueue<NamedRequest> {
  constructor(ageing = 1000, weights: Readonly<Record<string, number>> = {}) {
    super({ ageing, weights: new Map(Object.entries(weights)) });
  }

  ask(name: string, { arrivedAt = 0, ...options }: Ask = {}): NamedRequest {
    const request = requestOf(name, options);
    request.arrivedAt = arrivedAt;
    // Cancels the request as a batcher does.
    const leave = request.leave.bind(request);
    request.leave = () => {
      leave();
      this.leave(request);
    };
    this.add(allOf(request));
    return request;
  }

  takeNames(room: number, now = 0): string {
    return namesOf(this.take(room, now));
  }
}

describe('PriorityQueue', () => {
  it('[4.6] Rows of one priority leave the queue in their order of arrival, those of one request together', () => {
    const backlog = new NamedBacklog();
    backlog.ask('a', { size: 2 });
    backlog.ask('b', { size: 4 });

    expect(backlog.take(4, 0).map((part) => namesOf([part]))).toEqual(['a0 a1', 'b0 b1']);
    expect(backlog.takeNames(4)).toBe('b2 b3');
    expect(backlog.takeNames(4)).toBe('');
  });

  it('[7.4] Rows of higher priority leave the queue first', () => {
    const backlog = new NamedBacklog();
    [0, -1, 2, 0, 2].forEach((priority, i) => backlog.ask('abcde'[i]!, { priority }));

    expect(backlog.takeNames(9)).toBe('c0 e0 a0 d0 b0');
  });

  it('[7.4] Rows of lower priority fill the rest of a batch', () => {
    const backlog = new NamedBacklog();
    backlog.ask('low', { priority: -1, size: 5 });
    backlog.ask('high', { priority: 1, size: 2 });

    expect(backlog.takeNames(4)).toBe('high0 high1 low0 low1');
  });

  it.each([
    { waited: 999, first: 'new' },
    { waited: 1001, first: 'old' },
  ])(
    '[7.4] After $waited ms with an ageing time of 1000 ms, the $first row leaves the queue first',
    ({ waited, first }) => {
      const backlog = new NamedBacklog(1000);
      backlog.ask('old', { priority: 0, arrivedAt: 0 });
      backlog.ask('new', { priority: 1, arrivedAt: waited });

      expect(backlog.takeNames(1, waited)).toBe(`${first}0`);
    },
  );

  it('[7.4] Each level between two priorities counts as one ageing time', () => {
    const backlog = new NamedBacklog(100);
    backlog.ask('old', { priority: -2 });
    backlog.ask('new', { priority: 3, arrivedAt: 499 });
    backlog.ask('newer', { priority: 3, arrivedAt: 501 });

    expect(backlog.takeNames(3)).toBe('new0 old0 newer0');
  });

  it('[7.4] Rows of every tenant of a low priority run in the end, below an endless load of higher priority', () => {
    const backlog = new NamedBacklog(50);
    const low = ['a', 'b', 'c'].map((tenant) => backlog.ask(tenant, { tenant, priority: -1 }));
    let now = 0;

    for (; now < 200 && low.some(({ ready }) => ready > 0); now++) {
      backlog.ask(`high ${now}.`, { priority: 1, arrivedAt: now, size: 2 });
      backlog.ask(`new ${now}.`, { priority: -1, tenant: `tenant ${now}`, arrivedAt: now });
      backlog.take(2, now);
    }

    expect(now).toBeGreaterThan(99);
    expect(now).toBeLessThan(200);
  });

  it('[7.4] Tenants share a level by weight, and levels are not shared', () => {
    const backlog = new NamedBacklog(1000, { b: 2 });
    for (let i = 0; i < 6; i++) {
      backlog.ask('a', { tenant: 'a' });
      backlog.ask('b', { tenant: 'b' });
      backlog.ask('c', { tenant: 'a', priority: 1 });
    }

    expect(backlog.takeNames(6)).toBe('c0 c0 c0 c0 c0 c0');
    const rows = backlog.takeNames(6).split(' ');
    expect(rows.filter((row) => row === 'b0')).toHaveLength(4);
  });

  it('[8.3] A batch ends before a whole request that does not fit into it', () => {
    const backlog = new NamedBacklog();
    backlog.ask('a', { size: 2 });
    backlog.ask('w', { size: 3, whole: true });
    backlog.ask('b');

    expect([backlog.takeNames(4), backlog.takeNames(4)]).toEqual(['a0 a1', 'w0 w1 w2 b0']);
  });

  it('[7.1] The queue counts the rows of open requests, in all and per request', () => {
    const backlog = new NamedBacklog();
    const [a, b] = [backlog.ask('a', { size: 3, priority: 1 }), backlog.ask('b', { size: 2 })];
    expect([backlog.size, a.ready, b.ready]).toEqual([5, 3, 2]);

    backlog.take(2, 0);
    expect([backlog.size, a.ready, b.ready]).toEqual([3, 1, 2]);
    a.leave();
    expect([backlog.size, a.ready, b.ready]).toEqual([2, 0, 2]);
    a.leave();
    backlog.take(9, 0);
    expect([backlog.size, a.ready, b.ready]).toEqual([0, 0, 0]);
  });

  it('[7.2] A row whose deadline has passed is neither taken nor counted, at any level', () => {
    const backlog = new NamedBacklog();
    const late = [2, 1, 0].map((priority) =>
      backlog.ask(`late${priority}.`, { priority, deadline: 10 }),
    );
    late.forEach((request) => (request.expire = () => request.leave()));
    backlog.ask('a', { deadline: 11 });

    expect(backlog.takeNames(2, 10)).toBe('a0');
    expect(late.map(({ isOver }) => isOver)).toEqual([true, true, true]);
    expect(backlog.size).toBe(0);
  });

  it('[7.4] The queue reports whether it has open rows of a priority or a higher one', () => {
    const backlog = new NamedBacklog();
    const reached = (now = 0): boolean[] =>
      [0, 1, 2, 3].map((priority) => backlog.reaches(priority, now));
    backlog.ask('a', { priority: 0 });
    const left = backlog.ask('b', { priority: 2 });
    const late = backlog.ask('c', { priority: 1, deadline: 10 });
    late.expire = () => late.leave();
    expect(reached()).toEqual([true, true, true, false]);

    left.leave();
    expect(reached()).toEqual([true, true, false, false]);
    expect(reached(10)).toEqual([true, false, false, false]);
    backlog.take(1, 10);
    expect(reached()).toEqual([false, false, false, false]);
  });

  it('[7.3] Cancelled requests are swept once they are more than 64 and more than the rest', () => {
    const backlog = new NamedBacklog();
    const requests = Array.from({ length: 140 }, (_, i) =>
      backlog.ask(`${i}.`, { priority: i % 2, tenant: `${i % 3}` }),
    );
    const leaving = (count: number): void =>
      requests.splice(0, count).forEach((request) => request.leave());

    leaving(64);
    expect([...backlog]).toHaveLength(140);
    leaving(6);
    expect([...backlog]).toHaveLength(140);
    leaving(1);

    expect([...backlog]).toHaveLength(69);
    expect([...backlog].every(({ request }) => !request.isOver)).toBe(true);
    expect(backlog.take(999, 0)).toHaveLength(69);
  });

  it('[7.3] Up to 64 cancelled requests are not swept, also when few others stay', () => {
    const backlog = new NamedBacklog();
    const requests = Array.from({ length: 66 }, (_, i) => backlog.ask(`${i}.`));
    requests.slice(0, 64).forEach((request) => request.leave());
    expect([...backlog]).toHaveLength(66);
    // A request that leaves repeatedly counts once.
    requests.slice(0, 64).forEach((request) => request.leave());
    expect([...backlog]).toHaveLength(66);

    requests[64]!.leave();
    expect([...backlog]).toHaveLength(1);
  });

  it('[7.3] Sweeping reads the requests that stay seldom, for any number of arrivals and departures', () => {
    const backlog = new NamedBacklog();
    let looks = 0;
    for (let i = 0; i < 1000; i++) {
      const stays = backlog.ask(`stays ${i}.`);
      Object.defineProperty(stays, 'isOver', { get: () => (looks++, false) });
    }

    for (let i = 0; i < 5000; i++) {
      backlog.ask(`${i}.`).leave();
    }

    expect(looks).toBeLessThanOrEqual(5000);
  });

  it('[7.3] The queue holds a bounded number of cancelled requests', () => {
    const backlog = new NamedBacklog();
    backlog.ask('stays', { size: 10 });

    for (let i = 0; i < 5000; i++) {
      backlog.ask(`${i}.`).leave();
    }

    expect([...backlog].length).toBeLessThanOrEqual(1 + 65);
  });

  it('[7.2] [7.3] No row is lost when rows that expire make the queue sweep itself', () => {
    const backlog = new NamedBacklog();
    for (let i = 0; i < 100; i++) {
      const late = backlog.ask(`late${i}.`, { deadline: 10 });
      late.expire = () => late.leave();
    }
    ['a', 'b', 'c'].forEach((name) => backlog.ask(name));

    expect(backlog.takeNames(9, 10)).toBe('a0 b0 c0');
    expect(backlog.size).toBe(0);
  });

  it('[4.6] [7.4] Every row is taken once, and the earlier first within a tenant and priority', () => {
    const step = fc.record({
      do: fc.constantFrom('ask', 'ask', 'take', 'leave'),
      priority: fc.integer({ min: -1, max: 1 }),
      tenant: fc.constantFrom('', 'a', 'b'),
      size: fc.integer({ min: 1, max: 4 }),
      whole: fc.boolean(),
      patience: fc.option(fc.nat(30), { nil: Infinity, freq: 3 }),
    });
    fc.assert(
      fc.property(fc.array(step, { maxLength: 60 }), (steps) => {
        const backlog = new NamedBacklog(10);
        const asked: NamedRequest[] = [];
        const taken = new Map<NamedRequest, number>();
        let now = 0;
        const take = (room: number): number => {
          const parts = backlog.take(room, now);
          for (const { request, offset, count } of parts) {
            expect(request.deadline).toBeGreaterThan(now);
            expect(request.isOver).toBe(false);
            expect(offset).toBe(taken.get(request) ?? 0);
            taken.set(request, offset + count);
            const earlier = asked
              .slice(0, asked.indexOf(request))
              .filter(
                ({ priority, tenant }) =>
                  priority === request.priority && tenant === request.tenant,
              );
            expect(earlier.every((other) => other.isOver || taken.get(other) === other.size)).toBe(
              true,
            );
          }
          return parts.reduce((sum, { count }) => sum + count, 0);
        };
        for (const { do: what, patience, ...options } of steps) {
          now += 2;
          if (what === 'ask') {
            const request = backlog.ask(`${asked.length}.`, {
              ...options,
              deadline: now + patience,
              arrivedAt: now,
            });
            request.expire = () => request.leave();
            asked.push(request);
          } else if (what === 'take') {
            expect(take(4)).toBeLessThanOrEqual(4);
          } else {
            asked
              .find((request) => request.priority === options.priority && !request.isOver)
              ?.leave();
          }
          const ready = asked.reduce((sum, request) => sum + request.ready, 0);
          expect(backlog.size).toBe(ready);
        }
        while (take(4) > 0) {
          // Until nothing is left.
        }
        expect(
          asked.filter((request) => !request.isOver && taken.get(request) !== request.size),
        ).toEqual([]);
        expect(backlog.size).toBe(0);
      }),
    );
  });
});
