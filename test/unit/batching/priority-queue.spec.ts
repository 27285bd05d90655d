import { describe, expect, it } from '@jest/globals';
import * as fc from 'fast-check';
import { PriorityQueue } from '../../../lib/batching/priority-queue.js';
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
    // As a batcher does for whoever is over.
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

describe('Backlog', () => {
  it('[4.6] gives the rows of one priority in the order in which they came, those of one request together', () => {
    const backlog = new NamedBacklog();
    backlog.ask('a', { size: 2 });
    backlog.ask('b', { size: 4 });

    expect(backlog.take(4, 0).map((part) => namesOf([part]))).toEqual(['a0 a1', 'b0 b1']);
    expect(backlog.takeNames(4)).toBe('b2 b3');
    expect(backlog.takeNames(4)).toBe('');
  });

  it('[7.4] gives rows of higher priority first', () => {
    const backlog = new NamedBacklog();
    [0, -1, 2, 0, 2].forEach((priority, i) => backlog.ask('abcde'[i]!, { priority }));

    expect(backlog.takeNames(9)).toBe('c0 e0 a0 d0 b0');
  });

  it('[7.4] fills a batch with rows of lower priority', () => {
    const backlog = new NamedBacklog();
    backlog.ask('low', { priority: -1, size: 5 });
    backlog.ask('high', { priority: 1, size: 2 });

    expect(backlog.takeNames(4)).toBe('high0 high1 low0 low1');
  });

  it.each([
    { waited: 999, first: 'new' },
    { waited: 1001, first: 'old' },
  ])(
    '[7.4] gives $first rows first where those of a lower level have waited $waited ms longer, of 1000',
    ({ waited, first }) => {
      const backlog = new NamedBacklog(1000);
      backlog.ask('old', { priority: 0, arrivedAt: 0 });
      backlog.ask('new', { priority: 1, arrivedAt: waited });

      expect(backlog.takeNames(1, waited)).toBe(`${first}0`);
    },
  );

  it('[7.4] counts a level for each of the levels between', () => {
    const backlog = new NamedBacklog(100);
    backlog.ask('old', { priority: -2 });
    backlog.ask('new', { priority: 3, arrivedAt: 499 });
    backlog.ask('newer', { priority: 3, arrivedAt: 501 });

    expect(backlog.takeNames(3)).toBe('new0 old0 newer0');
  });

  it('[7.4] lets nobody starve: of a priority below others that never end, the rows of every tenant run in the end', () => {
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

  it('[7.4] shares fairly among the tenants of a level, by weight, and not between levels', () => {
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

  it('[8.3] ends a batch before a request that must run whole and does not fit', () => {
    const backlog = new NamedBacklog();
    backlog.ask('a', { size: 2 });
    backlog.ask('w', { size: 3, whole: true });
    backlog.ask('b');

    expect([backlog.takeNames(4), backlog.takeNames(4)]).toEqual(['a0 a1', 'w0 w1 w2 b0']);
  });

  it('[7.1] counts the rows for which somebody waits, and of each request those that are ready', () => {
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

  it('[7.2] takes no row whose deadline has passed, of whatever level, and counts it no more', () => {
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

  it('[7.4] knows whether it has rows of a priority or a higher one, those for which nobody waits not counted', () => {
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

  it('[7.3] forgets those that have left once they are more than 64 and more than the rows that stay', () => {
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

  it('[7.3] does not look for so few as 64, though hardly any stay', () => {
    const backlog = new NamedBacklog();
    const requests = Array.from({ length: 66 }, (_, i) => backlog.ask(`${i}.`));
    requests.slice(0, 64).forEach((request) => request.leave());
    expect([...backlog]).toHaveLength(66);
    // They leave once, however often that is said.
    requests.slice(0, 64).forEach((request) => request.leave());
    expect([...backlog]).toHaveLength(66);

    requests[64]!.leave();
    expect([...backlog]).toHaveLength(1);
  });

  it('[7.3] looks at those that stay seldom, however many come and leave', () => {
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

  it('[7.3] keeps a bounded number of requests that have left, however many come and leave', () => {
    const backlog = new NamedBacklog();
    backlog.ask('stays', { size: 10 });

    for (let i = 0; i < 5000; i++) {
      backlog.ask(`${i}.`).leave();
    }

    expect([...backlog].length).toBeLessThanOrEqual(1 + 65);
  });

  it('[7.2] [7.3] loses no row where those that expire are so many that it forgets them', () => {
    const backlog = new NamedBacklog();
    for (let i = 0; i < 100; i++) {
      const late = backlog.ask(`late${i}.`, { deadline: 10 });
      late.expire = () => late.leave();
    }
    ['a', 'b', 'c'].forEach((name) => backlog.ask(name));

    expect(backlog.takeNames(9, 10)).toBe('a0 b0 c0');
    expect(backlog.size).toBe(0);
  });

  it('[4.6] [7.4] gives every row once, and of those of one tenant and priority the earlier first', () => {
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
