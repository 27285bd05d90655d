import { describe, expect, it } from '@jest/globals';
import * as fc from 'fast-check';
import type { Part } from '../../../lib/batching/queued-request.js';
import type { NamedRequest } from '../../fixtures/batching/held-batcher.js';
import { NamedLine } from '../../fixtures/batching/named-pipeline.js';

describe('WaitingLine', () => {
  it('[4.4] gives windows in the order in which they joined', () => {
    const line = new NamedLine();
    line.window('left', 'a', 3);
    line.window('right', 'b');
    line.window('left', 'c');

    expect(line.isEmpty).toBe(false);
    expect(line.takeAll()).toEqual(['a0 a1 a2', 'b0', 'c0']);
    expect(line.isEmpty).toBe(true);
    expect(line.next(0)).toBeUndefined();
  });

  it('[4.2] lets a window grow in its place until it is full', () => {
    const line = new NamedLine();
    line.window('left', 'a');
    line.window('right', 'b');

    expect(['c', 'd', 'e'].map((name) => line.add('left', name) !== undefined)).toEqual([true, true, false]);

    expect(line.next(0)).toBe('full');
    expect(line.take(0)).toMatchObject({ reason: 'full', size: 3, lane: line.lane('left') });
    expect(line.takeAll()).toEqual(['b0']);
  });

  it('[4.2] does not let a window grow that was taken', () => {
    const line = new NamedLine();
    line.window('left', 'a');
    line.takeNames();

    expect(line.add('left', 'b')).toBeUndefined();
  });

  it('[4.2] grows the later window of a lane when the earlier is taken', () => {
    const line = new NamedLine();
    line.window('left', 'a', 3);
    line.window('left', 'b');
    line.takeNames();

    line.add('left', 'c');

    expect(line.takeAll()).toEqual(['b0 c0']);
  });

  it('[4.2] has no room in a lane that has no window in line', () => {
    const line = new NamedLine();
    line.window('left', 'a');

    expect(line.roomIn(line.lane('right'))).toBe(0);
  });

  it('[4.2] has no room in a lane whose next window is open: its rows go before', () => {
    const line = new NamedLine();
    line.window('left', 'a');
    expect(line.roomIn(line.lane('left'))).toBe(2);

    line.open(line.lane('left'));
    expect(line.roomIn(line.lane('left'))).toBe(0);

    line.window('left', 'b');
    expect(line.roomIn(line.lane('left'))).toBe(4);
  });

  it('[8.3] has no room in a window that was flushed', () => {
    const line = new NamedLine();
    line.close('left', [line.part('left', 'a')], 'flush');

    expect(line.roomIn(line.lane('left'))).toBe(0);
  });

  it('[4.7] lets any number of lanes grow', () => {
    const line = new NamedLine();
    const lanes = Array.from({ length: 5000 }, (_, i) => `lane ${i}`);
    lanes.forEach((lane) => line.window(lane, 'a'));

    expect(lanes.filter((lane) => !line.add(lane, 'b'))).toEqual([]);
    expect(new Set(line.takeAll())).toEqual(new Set(['a0 b0']));
  });

  it('[4.7] loses no rows, nor the room for them, where it forgets lanes that have none', () => {
    const line = new NamedLine();
    const left = line.window('waits', 'a');
    line.open(line.lane('open'));
    for (let i = 0; i < 5000; i++) {
      line.window(`lane ${i}`, 'b');
      line.window('urgent', 'c');
      line.takeNames();
      line.takeNames();
    }

    expect(line.roomIn(line.lane('open'))).toBe(0);
    line.close('open', [line.part('open', 'd')]);
    expect(line.add('open', 'e')).toBeDefined();
    line.leave(left);
    expect(line.takeAll().filter((rows) => !['b0', 'c0'].includes(rows))).toEqual(['d0 e0']);
  });

  it('[9.3] gives all requests back when it is cleared, and is then as new', () => {
    const line = new NamedLine();
    const requests = [line.window('left', 'a'), line.window('right', 'b', 3), line.add('left', 'c')];
    const again = line.part('right', 'd', { size: 2 });
    line.again([again], undefined, 3);
    const many = Array.from({ length: 300_000 }, () => line.part('many', 'e'));
    line.lane('many', many.length);
    line.close('many', many, 'full');

    expect(line.clear()).toEqual(new Set([...requests, again.request, ...many.map(({ request }) => request)]));
    expect([line.isEmpty, line.next(0), line.roomIn(line.lane('left'))]).toEqual([true, undefined, 0]);

    line.window('left', 'f');
    expect(line.takeAll()).toEqual(['f0']);
  });

  it('[4.4] keeps the order however often windows join and leave', () => {
    const line = new NamedLine();
    const taken: unknown[] = [];
    for (let i = 0; i < 1000; i++) {
      line.window('left', `${i}.`, 3);
      if (i % 3 > 0) {
        taken.push(line.takeNames());
      }
    }

    expect([...taken, ...line.takeAll()]).toEqual(Array.from({ length: 1000 }, (_, i) => `${i}.0 ${i}.1 ${i}.2`));
  });

  it('[4.4] looks at a row as often however many wait', () => {
    expect(looksPerRow(2000)).toBe(looksPerRow(20));
  });

  it('[7.4] looks at a row as often however many of its lane wait, of whatever priority', () => {
    expect(looksPerRow(3000, 1)).toBeLessThanOrEqual(looksPerRow(30, 1));
  });

  describe('decides late', () => {
    it('[7.4] which rows of a lane a batch gets: those of higher priority first', () => {
      const line = new NamedLine();
      line.close('left', [line.part('left', 'a', { size: 3 })], 'full');
      line.close('left', [line.part('left', 'b', { size: 2 }), line.part('left', 'c', { priority: 1 })], 'full');

      expect(line.takeAll()).toEqual(['c0 a0 a1', 'a2 b0 b1']);
    });

    it('[7.4] which lane is next: that in which rows of higher priority have closed a window', () => {
      const line = new NamedLine();
      line.window('left', 'a', 3, 0);
      line.close('right', [line.part('right', 'b'), line.part('right', 'c', { priority: 1 })], 'timeout', 999);

      expect(line.takeAll(999)).toEqual(['c0 b0', 'a0 a1 a2']);
    });

    it('[7.4] that a lane that has waited for more than a level goes before one of higher priority', () => {
      const line = new NamedLine();
      line.window('left', 'a', 3, 0);
      line.close('right', [line.part('right', 'b', { priority: 1, now: 1001 })], 'timeout', 1001);

      expect(line.takeAll(1001)).toEqual(['a0 a1 a2', 'b0']);
    });

    it('[7.4] that a row of higher priority, which joins a window that waits, takes it ahead', () => {
      const line = new NamedLine();
      line.window('right', 'r', 3);
      line.window('left', 'a', 2);

      line.add('left', 'b', { priority: 1 });

      expect(line.takeAll()).toEqual(['b0 a0 a1', 'r0 r1 r2']);
    });

    it('[7.4] that it goes ahead alone where the windows of its lane are full of others, who keep their places', () => {
      const line = new NamedLine();
      line.window('left', 'a', 3);
      line.window('right', 'r', 3);
      line.window('left', 'b', 2);

      line.add('left', 'c', { priority: 1 });

      expect(line.takeAll()).toEqual(['c0 a0 a1', 'a2 b0 b1', 'r0 r1 r2']);
    });

    it('[7.4] that it goes ahead once, however many rows of its priority come', () => {
      const line = new NamedLine();
      line.window('right', 'r', 3);
      line.window('left', 'a');
      line.window('left', 'b');

      ['c', 'd', 'e', 'f'].forEach((name) => line.add('left', name, { priority: 1 }));

      expect(line.takeAll()).toEqual(['c0 d0 e0', 'r0 r1 r2', 'f0 a0 b0']);
    });

    it('[7.4] [7.3] that nobody goes ahead once the row has left for which that was', () => {
      const line = new NamedLine();
      line.window('right', 'r', 3);
      line.window('left', 'a');
      const urgent = line.add('left', 'b', { priority: 1 })!;

      urgent.leave();
      line.leave(urgent);

      expect(line.takeAll()).toEqual(['r0 r1 r2', 'a0']);
    });

    it('[7.4] that rows of lower priority go ahead of nobody', () => {
      const line = new NamedLine();
      line.window('left', 'a');
      line.window('right', 'r', 3);

      line.add('left', 'b', { priority: -1 });

      expect(line.takeAll()).toEqual(['a0 b0', 'r0 r1 r2']);
    });
  });

  describe('of requests that have left', () => {
    it('[7.3] gives their places to rows that come later', () => {
      const line = new NamedLine();
      const gone = line.window('left', 'a', 3);
      line.window('left', 'b', 2);
      expect(line.roomIn(line.lane('left'))).toBe(1);

      gone.leave();
      line.leave(gone);
      expect(line.roomIn(line.lane('left'))).toBe(4);
      line.add('left', 'c', { size: 2 });

      expect(line.takeAll()).toEqual(['b0 b1 c0', 'c1']);
    });

    it('[7.3] takes no place for a window of nothing else', () => {
      const line = new NamedLine();
      const part = line.part('left', 'a');
      part.request.leave();

      line.close('left', [part]);

      expect([line.isEmpty, line.roomIn(line.lane('left'))]).toEqual([true, 0]);
    });

    it('[7.3] passes over a place of which all rows have left', () => {
      const line = new NamedLine();
      const gone = line.window('left', 'a', 3);
      line.window('right', 'b');
      gone.leave();
      line.leave(gone);

      expect(line.takeAll()).toEqual(['b0']);
      expect(line.roomIn(line.lane('left'))).toBe(0);
    });

    it('[7.2] passes over rows whose deadline has passed, and gives their places to others', () => {
      const line = new NamedLine();
      const late = line.part('left', 'a', { size: 2, deadline: 10 });
      late.request.expire = () => {
        late.request.leave();
        line.leave(late.request);
      };
      line.close('left', [late, line.part('left', 'b')], 'full');
      line.window('left', 'c', 2);

      expect([line.takeNames(10), late.request.isOver]).toEqual(['b0 c0 c1', true]);
    });
  });

  describe('of batches that run again', () => {
    it('[6.4] gives them by themselves, with what is known of them, as full batches', () => {
      const line = new NamedLine();
      line.window('left', 'a');
      line.again([line.part('left', 'b'), line.part('left', 'c')], 'known', 3);
      line.add('left', 'd');

      expect(line.next(0)).toBe('full');
      expect(line.take(0)).toMatchObject({ reason: 'retry', history: 'known', size: 3, lane: line.lane('left') });
      expect(line.takeAll()).toEqual(['a0 d0']);
    });

    it('[6.4] gives them ahead of all that came later, and behind those of a higher priority', () => {
      const line = new NamedLine();
      line.window('left', 'a', 3, 5);
      line.close('right', [line.part('right', 'b', { priority: 1 })], 'timeout', 900);

      line.again([line.part('left', 'c', { now: 2 })], undefined, 3);

      expect(line.takeAll(900)).toEqual(['b0', 'c0', 'a0 a1 a2']);
    });

    it('[6.4] gives them in their order, and ahead of those that came at the same time', () => {
      const line = new NamedLine();
      line.window('left', 'a', 3);
      ['b', 'c'].forEach((name) => line.again([line.part('left', name)], undefined, 3));

      expect(line.takeAll()).toEqual(['b0', 'c0', 'a0 a1 a2']);
    });

    it('[7.3] gives of them the rows for which somebody waits, and passes over them where that is nobody', () => {
      const line = new NamedLine();
      const parts = ['a', 'b', 'c'].map((name) => line.part('left', name));
      line.again(parts.slice(0, 2), undefined, 3);
      line.again(parts.slice(2), undefined, 3);
      [parts[0]!, parts[2]!].forEach(({ request }) => request.leave());

      expect(line.takeAll()).toEqual(['b0']);
      expect(line.isEmpty).toBe(true);
    });

    it('[7.2] runs none of their rows whose deadline has passed', () => {
      const line = new NamedLine();
      const parts = [10, 11].map((deadline) => line.part('left', `till ${deadline}.`, { deadline }));
      parts.forEach(({ request }) => (request.expire = () => request.leave()));
      line.again(parts, undefined, 3);
      line.again([line.part('left', 'late', { deadline: 9 })], undefined, 3);

      expect(line.takeAll(10)).toEqual(['till 11.0']);
      expect(parts[0]!.request.isOver).toBe(true);
    });

    it('[4.2] makes no room in their lane', () => {
      const line = new NamedLine();
      line.again([line.part('left', 'a')], undefined, 3);

      expect(line.roomIn(line.lane('left'))).toBe(0);
    });
  });

  describe('of requests that must run whole', () => {
    it('[8.3] lets no row grow into a lane that was sealed for one', () => {
      const line = new NamedLine();
      line.window('left', 'a', 2);

      line.seal(line.lane('left'));

      expect([line.roomIn(line.lane('left')), line.next(0)]).toEqual([0, 'growing']);
      expect(line.take(0)).toMatchObject({ reason: 'flush' });
    });

    it('[8.3] [7.4] seals a lane whose newest window was taken before the others', () => {
      const line = new NamedLine();
      line.window('left', 'a', 2);
      line.close('left', [line.part('left', 'b', { priority: 5 })], 'full');
      expect(line.takeNames()).toBe('b0 a0 a1');
      line.window('left', 'c', 2);
      line.close('left', [line.part('left', 'd', { size: 3, priority: 5 })], 'full');
      expect(line.takeNames()).toBe('d0 d1 d2');

      line.seal(line.lane('left'));

      expect(line.roomIn(line.lane('left'))).toBe(0);
      line.window('left', 'e');
      expect(line.roomIn(line.lane('left'))).toBe(2);
    });

    it('[8.3] gives those that another has pushed out a batch of their own', () => {
      const line = new NamedLine();
      line.close('left', [line.part('left', 'a', { size: 2, whole: true }), line.part('left', 'b')], 'full');
      line.close('left', [line.part('left', 'C', { size: 2, whole: true, priority: 1 })], 'flush');

      expect(line.takeAll()).toEqual(['C0 C1', 'a0 a1 b0']);
    });

    it('[8.3] [7.4] gives them one also where a place is left that was for urgent rows, which have run before', () => {
      const line = new NamedLine();
      ['a', 'b'].forEach((name) => {
        const gone = line.window('left', name);
        gone.leave();
        line.leave(gone);
      });
      line.add('left', 'X', { size: 2, whole: true, now: 3000 });
      line.add('left', 'Y', { size: 2, whole: true, now: 3000 });
      line.add('left', 'U', { size: 2, whole: true, priority: 1, now: 3500 });

      expect(line.takeAll(3500)).toEqual(['U0 U1', 'X0 X1', 'Y0 Y1']);
    });
  });

  it('[4.6] [8.3] gives every row for which somebody waits, once and in batches that are not too large', () => {
    const step = fc.record({
      do: fc.constantFrom('window', 'grow', 'grow', 'grow', 'take', 'leave', 'seal', 'again'),
      lane: fc.constantFrom('left', 'right'),
      size: fc.integer({ min: 1, max: 3 }),
      whole: fc.boolean(),
      priority: fc.integer({ min: -1, max: 2 }),
      wait: fc.nat(15),
    });
    fc.assert(
      fc.property(fc.array(step, { maxLength: 50 }), (steps) => {
        const line = new NamedLine(10);
        const asked: NamedRequest[] = [];
        const taken = new Map<NamedRequest, number>();
        let now = 0;
        let failed: Part<NamedRequest>[] = [];
        const take = (): void => {
          if (line.next(now)) {
            const { parts, lane } = line.take(now);
            expect(parts.length).toBeGreaterThan(0);
            expect(parts.every(({ request }) => request.lane === lane && !request.isOver)).toBe(true);
            expect(parts.reduce((sum, { count }) => sum + count, 0)).toBeLessThanOrEqual(3);
            for (const { request, offset, count } of parts) {
              expect(!request.whole || count === request.size).toBe(true);
              taken.set(request, (taken.get(request) ?? 0) + count);
              expect(offset + count).toBeLessThanOrEqual(request.size);
            }
            failed = [...parts];
          }
        };
        for (const { do: what, lane, wait, ...options } of steps) {
          now += wait;
          const part = line.part(lane, `${asked.length}.`, { ...options, now });
          if (what === 'window') {
            asked.push(part.request);
            line.close(lane, [part], options.size === 3 ? 'full' : 'timeout', now);
          } else if (what === 'grow' && line.roomIn(line.lane(lane)) >= options.size) {
            asked.push(part.request);
            line.grow(part, now);
          } else if (what === 'take') {
            take();
          } else if (what === 'leave') {
            const request = asked.find((known) => !known.isOver && known.priority === options.priority);
            request?.leave();
            if (request) {
              line.leave(request);
            }
          } else if (what === 'seal') {
            line.seal(line.lane(lane));
            expect(line.roomIn(line.lane(lane))).toBe(0);
          } else if (what === 'again' && failed.length > 0) {
            const live = failed.filter(({ request }) => !request.isOver);
            live.forEach(({ request, count }) => taken.set(request, taken.get(request)! - count));
            failed = [];
            if (live.length > 0) {
              line.again(live, undefined, 3);
            }
          }
        }
        while (!line.isEmpty) {
          expect(line.next(now) === undefined).toBe(line.isEmpty);
          take();
        }
        expect(asked.filter((request) => !request.isOver && taken.get(request) !== request.size)).toEqual([]);
        expect(['left', 'right'].map((lane) => line.roomIn(line.lane(lane)))).toEqual([0, 0]);
        expect([...line.clear()].filter((request) => !request.isOver)).toEqual([]);
      }),
    );
  });
});

/** How often a line reads what there is to know of a request while its window joins, grows and leaves. */
function looksPerRow(windows: number, lanes = windows): number {
  let looks = 0;
  const line = new NamedLine();
  const watched = (lane: string, i: number): Part<NamedRequest> => {
    const part = line.part(lane, `${i}.`, { priority: i % 3, tenant: `${i % 5}` });
    const request = new Proxy(part.request, {
      get: (target, name) => (looks++, Reflect.get(target, name)),
    });
    return { ...part, request };
  };
  for (let i = 0; i < windows; i++) {
    line.close(`lane ${i % lanes}`, [watched(`lane ${i % lanes}`, i)]);
  }
  for (let i = 0; i < windows; i++) {
    line.grow(watched(`lane ${i % lanes}`, i), 0);
  }
  expect(line.takeAll().join(' ').split(' ')).toHaveLength(windows * 2);
  return looks / windows;
}
