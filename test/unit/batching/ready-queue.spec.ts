import { describe, expect, it } from '@jest/globals';
import * as fc from 'fast-check';
import type { Part } from '../../../lib/core/batching/queued-request.js';
import type { NamedRequest } from '../../fixtures/batching/held-batcher.js';
import { NamedQueue } from '../../fixtures/batching/named-queue.js';

describe('ReadyQueue', () => {
  it('[4.4] Windows leave the queue in the order in which they joined it', () => {
    const queue = new NamedQueue();
    queue.window('left', 'a', 3);
    queue.window('right', 'b');
    queue.window('left', 'c');

    expect(queue.isEmpty).toBe(false);
    expect(queue.takeAll()).toEqual(['a0 a1 a2', 'b0', 'c0']);
    expect(queue.isEmpty).toBe(true);
    expect(queue.next(0)).toBeUndefined();
  });

  it('[4.2] A waiting window takes more rows in its place until it is full', () => {
    const queue = new NamedQueue();
    queue.window('left', 'a');
    queue.window('right', 'b');

    expect(['c', 'd', 'e'].map((name) => queue.add('left', name) !== undefined)).toEqual([
      true,
      true,
      false,
    ]);

    expect(queue.next(0)).toBe('full');
    expect(queue.take(0)).toMatchObject({ reason: 'full', size: 3, lane: queue.lane('left') });
    expect(queue.takeAll()).toEqual(['b0']);
  });

  it('[4.2] A window that was taken takes no more rows', () => {
    const queue = new NamedQueue();
    queue.window('left', 'a');
    queue.takeNames();

    expect(queue.add('left', 'b')).toBeUndefined();
  });

  it('[4.2] New rows join the later window of a lane when the earlier one was taken', () => {
    const queue = new NamedQueue();
    queue.window('left', 'a', 3);
    queue.window('left', 'b');
    queue.takeNames();

    queue.add('left', 'c');

    expect(queue.takeAll()).toEqual(['b0 c0']);
  });

  it('[4.2] A lane without a window in the queue has no room', () => {
    const queue = new NamedQueue();
    queue.window('left', 'a');

    expect(queue.roomIn(queue.lane('right'))).toBe(0);
  });

  it('[4.2] A lane has no room in the queue while its next window is open, whose rows go first', () => {
    const queue = new NamedQueue();
    queue.window('left', 'a');
    expect(queue.roomIn(queue.lane('left'))).toBe(2);

    queue.openWindow(queue.lane('left'));
    expect(queue.roomIn(queue.lane('left'))).toBe(0);

    queue.window('left', 'b');
    expect(queue.roomIn(queue.lane('left'))).toBe(4);
  });

  it('[8.3] A flushed window has no room', () => {
    const queue = new NamedQueue();
    queue.addClosed('left', [queue.part('left', 'a')], 'flush');

    expect(queue.roomIn(queue.lane('left'))).toBe(0);
  });

  it('[4.7] Windows of any number of lanes take more rows', () => {
    const queue = new NamedQueue();
    const lanes = Array.from({ length: 5000 }, (_, i) => `lane ${i}`);
    lanes.forEach((lane) => queue.window(lane, 'a'));

    expect(lanes.filter((lane) => !queue.add(lane, 'b'))).toEqual([]);
    expect(new Set(queue.takeAll())).toEqual(new Set(['a0 b0']));
  });

  it('[4.7] Removing lanes without rows loses no row and no room', () => {
    const queue = new NamedQueue();
    const left = queue.window('waits', 'a');
    queue.openWindow(queue.lane('open'));
    for (let i = 0; i < 5000; i++) {
      queue.window(`lane ${i}`, 'b');
      queue.window('urgent', 'c');
      queue.takeNames();
      queue.takeNames();
    }

    expect(queue.roomIn(queue.lane('open'))).toBe(0);
    queue.addClosed('open', [queue.part('open', 'd')]);
    expect(queue.add('open', 'e')).toBeDefined();
    queue.leave(left);
    expect(queue.takeAll().filter((rows) => !['b0', 'c0'].includes(rows))).toEqual(['d0 e0']);
  });

  it('[9.3] Clearing the queue returns all requests and leaves it as new', () => {
    const queue = new NamedQueue();
    const requests = [
      queue.window('left', 'a'),
      queue.window('right', 'b', 3),
      queue.add('left', 'c'),
    ];
    const again = queue.part('right', 'd', { size: 2 });
    queue.retry([again], undefined, 3);
    const many = Array.from({ length: 300_000 }, () => queue.part('many', 'e'));
    queue.lane('many', many.length);
    queue.addClosed('many', many, 'full');

    expect(queue.clear()).toEqual(
      new Set([...requests, again.request, ...many.map(({ request }) => request)]),
    );
    expect([queue.isEmpty, queue.next(0), queue.roomIn(queue.lane('left'))]).toEqual([
      true,
      undefined,
      0,
    ]);

    queue.window('left', 'f');
    expect(queue.takeAll()).toEqual(['f0']);
  });

  it('[4.4] Windows keep their order for any sequence of joining and leaving', () => {
    const queue = new NamedQueue();
    const taken: unknown[] = [];
    for (let i = 0; i < 1000; i++) {
      queue.window('left', `${i}.`, 3);
      if (i % 3 > 0) {
        taken.push(queue.takeNames());
      }
    }

    expect([...taken, ...queue.takeAll()]).toEqual(
      Array.from({ length: 1000 }, (_, i) => `${i}.0 ${i}.1 ${i}.2`),
    );
  });

  it('[4.4] The work per row does not grow with the number of queued rows', () => {
    expect(looksPerRow(2000)).toBe(looksPerRow(20));
  });

  it('[7.4] The work per row does not grow with the number of rows of its lane, at any priority', () => {
    expect(looksPerRow(3000, 1)).toBeLessThanOrEqual(looksPerRow(30, 1) + 1);
  });

  describe('late binding', () => {
    it('[7.4] A batch of a lane gets its rows of higher priority first', () => {
      const queue = new NamedQueue();
      queue.addClosed('left', [queue.part('left', 'a', { size: 3 })], 'full');
      queue.addClosed(
        'left',
        [queue.part('left', 'b', { size: 2 }), queue.part('left', 'c', { priority: 1 })],
        'full',
      );

      expect(queue.takeAll()).toEqual(['c0 a0 a1', 'a2 b0 b1']);
    });

    it('[7.4] The lane whose closed window has rows of higher priority is next', () => {
      const queue = new NamedQueue();
      queue.window('left', 'a', 3, 0);
      queue.addClosed(
        'right',
        [queue.part('right', 'b'), queue.part('right', 'c', { priority: 1 })],
        'timeout',
        999,
      );

      expect(queue.takeAll(999)).toEqual(['c0 b0', 'a0 a1 a2']);
    });

    it('[7.4] A lane that has waited longer than the ageing time runs before one of higher priority', () => {
      const queue = new NamedQueue();
      queue.window('left', 'a', 3, 0);
      queue.addClosed(
        'right',
        [queue.part('right', 'b', { priority: 1, now: 1001 })],
        'timeout',
        1001,
      );

      expect(queue.takeAll(1001)).toEqual(['a0 a1 a2', 'b0']);
    });

    it('[7.4] An urgent row that joins a waiting window moves that window ahead', () => {
      const queue = new NamedQueue();
      queue.window('right', 'r', 3);
      queue.window('left', 'a', 2);

      queue.add('left', 'b', { priority: 1 });

      expect(queue.takeAll()).toEqual(['b0 a0 a1', 'r0 r1 r2']);
    });

    it('[7.4] An urgent row runs ahead alone when the windows of its lane are full, and those keep their places', () => {
      const queue = new NamedQueue();
      queue.window('left', 'a', 3);
      queue.window('right', 'r', 3);
      queue.window('left', 'b', 2);

      queue.add('left', 'c', { priority: 1 });

      expect(queue.takeAll()).toEqual(['c0 a0 a1', 'a2 b0 b1', 'r0 r1 r2']);
    });

    it('[7.4] A lane moves ahead once for any number of urgent rows of one priority', () => {
      const queue = new NamedQueue();
      queue.window('right', 'r', 3);
      queue.window('left', 'a');
      queue.window('left', 'b');

      ['c', 'd', 'e', 'f'].forEach((name) => queue.add('left', name, { priority: 1 }));

      expect(queue.takeAll()).toEqual(['c0 d0 e0', 'r0 r1 r2', 'f0 a0 b0']);
    });

    it('[7.4] [7.3] A lane loses its urgent place when the urgent row leaves', () => {
      const queue = new NamedQueue();
      queue.window('right', 'r', 3);
      queue.window('left', 'a');
      const urgent = queue.add('left', 'b', { priority: 1 })!;

      urgent.leave();
      queue.leave(urgent);

      expect(queue.takeAll()).toEqual(['r0 r1 r2', 'a0']);
    });

    it('[7.4] Rows of lower priority move no window ahead', () => {
      const queue = new NamedQueue();
      queue.window('left', 'a');
      queue.window('right', 'r', 3);

      queue.add('left', 'b', { priority: -1 });

      expect(queue.takeAll()).toEqual(['a0 b0', 'r0 r1 r2']);
    });
  });

  describe('requests that have left', () => {
    it('[7.3] The places of a request that has left go to later rows', () => {
      const queue = new NamedQueue();
      const gone = queue.window('left', 'a', 3);
      queue.window('left', 'b', 2);
      expect(queue.roomIn(queue.lane('left'))).toBe(1);

      gone.leave();
      queue.leave(gone);
      expect(queue.roomIn(queue.lane('left'))).toBe(4);
      queue.add('left', 'c', { size: 2 });

      expect(queue.takeAll()).toEqual(['b0 b1 c0', 'c1']);
    });

    it('[7.3] A window with nothing but cancelled requests takes no place in the queue', () => {
      const queue = new NamedQueue();
      const part = queue.part('left', 'a');
      part.request.leave();

      queue.addClosed('left', [part]);

      expect([queue.isEmpty, queue.roomIn(queue.lane('left'))]).toEqual([true, 0]);
    });

    it('[7.3] A place in the queue whose rows have all left is skipped', () => {
      const queue = new NamedQueue();
      const gone = queue.window('left', 'a', 3);
      queue.window('right', 'b');
      gone.leave();
      queue.leave(gone);

      expect(queue.takeAll()).toEqual(['b0']);
      expect(queue.roomIn(queue.lane('left'))).toBe(0);
    });

    it('[7.2] Rows whose deadline has passed are skipped, and their places go to other rows', () => {
      const queue = new NamedQueue();
      const late = queue.part('left', 'a', { size: 2, deadline: 10 });
      late.request.expire = () => {
        late.request.leave();
        queue.leave(late.request);
      };
      queue.addClosed('left', [late, queue.part('left', 'b')], 'full');
      queue.window('left', 'c', 2);

      expect([queue.takeNames(10), late.request.isOver]).toEqual(['b0 c0 c1', true]);
    });
  });

  describe('retried batches', () => {
    it('[6.4] A retried batch runs by itself with its retry state, as a full batch', () => {
      const queue = new NamedQueue();
      queue.window('left', 'a');
      queue.retry([queue.part('left', 'b'), queue.part('left', 'c')], 'known', 3);
      queue.add('left', 'd');

      expect(queue.next(0)).toBe('full');
      expect(queue.take(0)).toMatchObject({
        reason: 'retry',
        retryState: 'known',
        size: 3,
        lane: queue.lane('left'),
      });
      expect(queue.takeAll()).toEqual(['a0 d0']);
    });

    it('[6.4] A retried batch runs before all later rows and after rows of higher priority', () => {
      const queue = new NamedQueue();
      queue.window('left', 'a', 3, 5);
      queue.addClosed('right', [queue.part('right', 'b', { priority: 1 })], 'timeout', 900);

      queue.retry([queue.part('left', 'c', { now: 2 })], undefined, 3);

      expect(queue.takeAll(900)).toEqual(['b0', 'c0', 'a0 a1 a2']);
    });

    it('[6.4] Retried batches run in their order and before windows of the same time', () => {
      const queue = new NamedQueue();
      queue.window('left', 'a', 3);
      ['b', 'c'].forEach((name) => queue.retry([queue.part('left', name)], undefined, 3));

      expect(queue.takeAll()).toEqual(['b0', 'c0', 'a0 a1 a2']);
    });

    it('[7.3] Cancelled rows of a retried batch do not run, and a batch without other rows is skipped', () => {
      const queue = new NamedQueue();
      const parts = ['a', 'b', 'c'].map((name) => queue.part('left', name));
      queue.retry(parts.slice(0, 2), undefined, 3);
      queue.retry(parts.slice(2), undefined, 3);
      [parts[0]!, parts[2]!].forEach(({ request }) => request.leave());

      expect(queue.takeAll()).toEqual(['b0']);
      expect(queue.isEmpty).toBe(true);
    });

    it('[7.2] Rows of a retried batch whose deadline has passed do not run', () => {
      const queue = new NamedQueue();
      const parts = [10, 11].map((deadline) =>
        queue.part('left', `till ${deadline}.`, { deadline }),
      );
      parts.forEach(({ request }) => (request.expire = () => request.leave()));
      queue.retry(parts, undefined, 3);
      queue.retry([queue.part('left', 'late', { deadline: 9 })], undefined, 3);

      expect(queue.takeAll(10)).toEqual(['till 11.0']);
      expect(parts[0]!.request.isOver).toBe(true);
    });

    it('[4.2] A retried batch makes no room in its lane', () => {
      const queue = new NamedQueue();
      queue.retry([queue.part('left', 'a')], undefined, 3);

      expect(queue.roomIn(queue.lane('left'))).toBe(0);
    });
  });

  describe('whole requests', () => {
    it('[8.3] A lane that was closed for a whole request takes no more rows', () => {
      const queue = new NamedQueue();
      queue.window('left', 'a', 2);

      queue.closeWindow(queue.lane('left'));

      expect([queue.roomIn(queue.lane('left')), queue.next(0)]).toEqual([0, 'growing']);
      expect(queue.take(0)).toMatchObject({ reason: 'flush' });
    });

    it('[8.3] [7.4] Closing a lane also works after its newest window was taken before the others', () => {
      const queue = new NamedQueue();
      queue.window('left', 'a', 2);
      queue.addClosed('left', [queue.part('left', 'b', { priority: 5 })], 'full');
      expect(queue.takeNames()).toBe('b0 a0 a1');
      queue.window('left', 'c', 2);
      queue.addClosed('left', [queue.part('left', 'd', { size: 3, priority: 5 })], 'full');
      expect(queue.takeNames()).toBe('d0 d1 d2');

      queue.closeWindow(queue.lane('left'));

      expect(queue.roomIn(queue.lane('left'))).toBe(0);
      queue.window('left', 'e');
      expect(queue.roomIn(queue.lane('left'))).toBe(2);
    });

    it('[8.3] Whole requests that an urgent one has pushed out get a batch of their own', () => {
      const queue = new NamedQueue();
      queue.addClosed(
        'left',
        [queue.part('left', 'a', { size: 2, whole: true }), queue.part('left', 'b')],
        'full',
      );
      queue.addClosed(
        'left',
        [queue.part('left', 'C', { size: 2, whole: true, priority: 1 })],
        'flush',
      );

      expect(queue.takeAll()).toEqual(['C0 C1', 'a0 a1 b0']);
    });

    it('[8.3] [7.4] Whole requests get batches of their own also when urgent rows have used the place left for them', () => {
      const queue = new NamedQueue();
      ['a', 'b'].forEach((name) => {
        const gone = queue.window('left', name);
        gone.leave();
        queue.leave(gone);
      });
      queue.add('left', 'X', { size: 2, whole: true, now: 3000 });
      queue.add('left', 'Y', { size: 2, whole: true, now: 3000 });
      queue.add('left', 'U', { size: 2, whole: true, priority: 1, now: 3500 });

      expect(queue.takeAll(3500)).toEqual(['U0 U1', 'X0 X1', 'Y0 Y1']);
    });
  });

  it('[4.6] [8.3] Every row of an open request is taken once, in batches within the size limit', () => {
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
        const queue = new NamedQueue(10);
        const asked: NamedRequest[] = [];
        const taken = new Map<NamedRequest, number>();
        let now = 0;
        let failed: Part<NamedRequest>[] = [];
        const take = (): void => {
          if (queue.next(now)) {
            const { parts, lane } = queue.take(now);
            expect(parts.length).toBeGreaterThan(0);
            expect(parts.every(({ request }) => request.lane === lane && !request.isOver)).toBe(
              true,
            );
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
          const part = queue.part(lane, `${asked.length}.`, { ...options, now });
          if (what === 'window') {
            asked.push(part.request);
            queue.addClosed(lane, [part], options.size === 3 ? 'full' : 'timeout', now);
          } else if (what === 'grow' && queue.roomIn(queue.lane(lane)) >= options.size) {
            asked.push(part.request);
            queue.extend(part, now);
          } else if (what === 'take') {
            take();
          } else if (what === 'leave') {
            const request = asked.find(
              (known) => !known.isOver && known.priority === options.priority,
            );
            request?.leave();
            if (request) {
              queue.leave(request);
            }
          } else if (what === 'seal') {
            queue.closeWindow(queue.lane(lane));
            expect(queue.roomIn(queue.lane(lane))).toBe(0);
          } else if (what === 'again' && failed.length > 0) {
            const live = failed.filter(({ request }) => !request.isOver);
            live.forEach(({ request, count }) => taken.set(request, taken.get(request)! - count));
            failed = [];
            if (live.length > 0) {
              queue.retry(live, undefined, 3);
            }
          }
        }
        while (!queue.isEmpty) {
          expect(queue.next(now) === undefined).toBe(queue.isEmpty);
          take();
        }
        expect(
          asked.filter((request) => !request.isOver && taken.get(request) !== request.size),
        ).toEqual([]);
        expect(['left', 'right'].map((lane) => queue.roomIn(queue.lane(lane)))).toEqual([0, 0]);
        expect([...queue.clear()].filter((request) => !request.isOver)).toEqual([]);
      }),
    );
  });
});

/** The number of reads of a request while its window joins the queue, is filled and leaves. */
function looksPerRow(windows: number, lanes = windows): number {
  let looks = 0;
  const queue = new NamedQueue();
  const watched = (lane: string, i: number): Part<NamedRequest> => {
    const part = queue.part(lane, `${i}.`, { priority: i % 3, tenant: `${i % 5}` });
    const request = new Proxy(part.request, {
      get: (target, name) => (looks++, Reflect.get(target, name)),
    });
    return { ...part, request };
  };
  for (let i = 0; i < windows; i++) {
    queue.addClosed(`lane ${i % lanes}`, [watched(`lane ${i % lanes}`, i)]);
  }
  for (let i = 0; i < windows; i++) {
    queue.extend(watched(`lane ${i % lanes}`, i), 0);
  }
  expect(queue.takeAll().join(' ').split(' ')).toHaveLength(windows * 2);
  return looks / windows;
}
