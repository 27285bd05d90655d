import { describe, expect, it } from '@jest/globals';
import type { Lane, Part } from '../../../lib/core/batching/queued-request.js';
import type { NamedRequest } from '../../fixtures/batching/held-batcher.js';
import { NamedQueue } from '../../fixtures/batching/named-queue.js';

describe('ReadyQueue: places', () => {
  it('[12.2] A window that is taken before it is full reports the size that it had room for', () => {
    const queue = new NamedQueue();
    queue.window('left', 'a');

    expect(queue.next(0)).toBe('growing');
    expect(queue.take(0)).toMatchObject({ size: 3, reason: 'timeout' });
    expect(queue.isEmpty).toBe(true);
  });

  it('[7.2] The end of a batch with a deadline is requested for exactly the rows that it is about to take', () => {
    const queue = new NamedQueue();
    const asked: [Lane, number][] = [];
    for (const size of [3, 2]) {
      queue.addClosed('left', [queue.part('left', 'a', { size, deadline: 1000 })]);
    }

    const endOf = (lane: Lane, rows: number): number => (asked.push([lane, rows]), 0);
    queue.take(0, endOf);
    queue.take(0, endOf);

    queue.window('left', 'without a deadline');
    queue.take(0, endOf);

    expect(asked).toEqual([3, 2].map((rows) => [queue.lane('left'), rows]));
  });

  describe('places of urgent rows', () => {
    it('[7.4] Urgent rows of equal lanes leave the queue in their order of arrival', () => {
      const queue = new NamedQueue();
      const lanes = ['left', 'right', 'middle'];
      lanes.forEach((lane) => queue.window(lane, `${lane} `));

      lanes.forEach((lane) => queue.add(lane, `urgent ${lane} `, { priority: 1 }));

      expect(queue.takeAll()).toEqual(lanes.map((lane) => `urgent ${lane} 0 ${lane} 0`));
    });

    it('[12.2] A batch that was flushed for urgent rows before it was full reports the reason "flush"', () => {
      const queue = new NamedQueue();
      queue.window('left', 'a');
      queue.add('left', 'b', { priority: 1 });

      expect(queue.next(0)).toBe('growing');
      expect(queue.take(0)).toMatchObject({ size: 3, reason: 'flush' });
    });

    it('[7.4] Urgent rows of a lane that has an urgent place get no second one, also after another window closed', () => {
      const queue = new NamedQueue();
      queue.addClosed('left', [queue.part('left', 'a', { size: 3, priority: 1 })], 'full');
      queue.window('right', 'r');
      queue.window('left', 'b');

      queue.add('left', 'c', { priority: 1 });

      expect(queue.takeAll()).toEqual(['a0 a1 a2', 'r0', 'c0 b0']);
    });

    it('[7.4] Urgent rows get no second place when the later of two urgent places is left', () => {
      const queue = new NamedQueue();
      queue.addClosed('left', [queue.part('left', 'a', { size: 3, priority: 1 })], 'full');
      queue.addClosed('left', [queue.part('left', 'b', { priority: 1 })]);
      expect(queue.takeNames()).toBe('a0 a1 a2');
      queue.window('right', 'r');
      queue.window('left', 'c');

      ['d', 'e', 'f'].forEach((name) => queue.add('left', name, { priority: 1 }));

      expect(queue.takeAll()).toEqual(['b0 d0 e0', 'r0', 'f0 c0']);
    });

    it('[7.4] Urgent rows get a place of their own when the earlier urgent place was taken', () => {
      const queue = new NamedQueue();
      queue.addClosed('left', [queue.part('left', 'a', { priority: 1 })]);
      expect(queue.takeNames()).toBe('a0');
      queue.window('right', 'r');
      queue.window('left', 'b');

      queue.add('left', 'c', { priority: 1 });

      expect(queue.takeAll()).toEqual(['c0 b0', 'r0']);
    });

    it('[7.4] [6.4] Urgent rows get a place beside a retried batch, which runs by itself', () => {
      const queue = new NamedQueue();
      queue.window('right', 'r');
      queue.window('left', 'a');
      queue.retry([queue.part('left', 'b', { priority: 1 })], undefined, 3);

      queue.add('left', 'c', { priority: 1 });

      expect(queue.takeAll()).toEqual(['b0', 'c0 a0', 'r0']);
    });
  });

  describe('places that are closed for a whole request', () => {
    it('[8.3] Closing a lane closes its newest window, and full windows before it stay full', () => {
      const queue = new NamedQueue();
      ['a', 'b'].forEach((name) => queue.window('left', name, 3));
      queue.window('left', 'c', 2);
      queue.takeNames();

      queue.closeWindow(queue.lane('left'));

      expect(queue.next(0)).toBe('full');
      expect(queue.take(0)).toMatchObject({ reason: 'full' });
      expect(queue.next(0)).toBe('growing');
      expect(queue.take(0)).toMatchObject({ reason: 'flush' });
    });

    it('[8.3] Closing a lane takes no room from windows that come later', () => {
      const queue = new NamedQueue();
      queue.window('left', 'a');
      queue.closeWindow(queue.lane('left'));
      queue.takeNames();

      queue.window('left', 'b');

      expect(queue.roomIn(queue.lane('left'))).toBe(2);
    });

    it('[8.3] [7.4] Closing a lane whose newest window was taken closes another window of that lane alone', () => {
      const queue = new NamedQueue();
      queue.window('right', 'r', 2);
      queue.window('left', 'a', 2);
      queue.addClosed('left', [queue.part('left', 'b', { size: 3, priority: 5 })], 'full');
      expect(queue.takeNames()).toBe('b0 b1 b2');

      queue.closeWindow(queue.lane('left'));

      expect(queue.take(0)).toMatchObject({ lane: queue.lane('right'), reason: 'timeout' });
      expect(queue.take(0)).toMatchObject({ lane: queue.lane('left'), reason: 'flush' });
      queue.window('left', 'c');
      expect(queue.roomIn(queue.lane('left'))).toBe(2);
    });

    it('[8.3] [4.4] Whole requests that did not fit run before windows that arrive later', () => {
      const queue = new NamedQueue();
      const gone = queue.window('left', 'a');
      queue.add('left', 'X', { size: 2, whole: true });
      const places = queue.window('left', 'b', 3);
      [gone, places].forEach((request) => {
        request.leave();
        queue.leave(request);
      });
      queue.add('left', 'Y', { size: 2, whole: true });
      queue.add('left', 'Z', { size: 2, whole: true });
      expect([queue.takeNames(), queue.takeNames()]).toEqual(['X0 X1', 'Y0 Y1']);

      queue.window('right', 'r');

      expect(queue.take(0)).toMatchObject({ lane: queue.lane('left'), reason: 'flush' });
      expect(queue.takeAll()).toEqual(['r0']);
    });
  });

  it.each([0, 2000])(
    '[4.7] The queue keeps state for few lanes without rows, beside %s lanes with rows',
    (waiting) => {
      let made = 0;
      const order = { ageing: 1000, weights: new Map<string, number>() };
      const queue = new NamedQueue(1000, {
        ...order,
        get weights() {
          // Read for each lane with its first rows.
          made++;
          return order.weights;
        },
      });
      const pass = (lane: string, part: Part<NamedRequest>): void => {
        queue.addWindow({ lane: queue.lane(lane), parts: [part], size: 3, reason: 'timeout' }, 0);
        queue.take(0);
      };
      for (let i = 0; i < waiting; i++) {
        queue.addClosed(`waits ${i}`, [queue.part(`waits ${i}`, 'w', { priority: -1 })]);
      }
      made = 0;

      for (let i = 0; i < 10_000; i++) {
        pass(`lane ${i % 5000}`, queue.part(`lane ${i % 5000}`, 'a'));
      }

      expect(made).toBe(10_000);
    },
  );
});
