import { describe, expect, it } from '@jest/globals';
import type { Lane, Part } from '../../../lib/batching/queued-request.js';
import type { NamedRequest } from '../../fixtures/batching/held-batcher.js';
import { NamedLine } from '../../fixtures/batching/named-pipeline.js';

describe('WaitingLine, of places in it,', () => {
  it('[12.2] tells the size of a window also where it is taken before it is full', () => {
    const line = new NamedLine();
    line.window('left', 'a');

    expect(line.next(0)).toBe('growing');
    expect(line.take(0)).toMatchObject({ size: 3, reason: 'timeout' });
    expect(line.isEmpty).toBe(true);
  });

  it('[7.2] asks when as many rows will have run as it is about to take', () => {
    const line = new NamedLine();
    const asked: [Lane, number][] = [];
    line.window('left', 'a', 3);
    line.window('left', 'b', 2);

    const endOf = (lane: Lane, rows: number): number => (asked.push([lane, rows]), 0);
    line.take(0, endOf);
    line.take(0, endOf);

    expect(asked).toEqual([3, 2].map((rows) => [line.lane('left'), rows]));
  });

  describe('that urgent rows have ahead', () => {
    it('[7.4] gives them in the order in which they came, of lanes in which nothing is different', () => {
      const line = new NamedLine();
      const lanes = ['left', 'right', 'middle'];
      lanes.forEach((lane) => line.window(lane, `${lane} `));

      lanes.forEach((lane) => line.add(lane, `urgent ${lane} `, { priority: 1 }));

      expect(line.takeAll()).toEqual(lanes.map((lane) => `urgent ${lane} 0 ${lane} 0`));
    });

    it('[12.2] says that a batch was flushed for them where it was not full', () => {
      const line = new NamedLine();
      line.window('left', 'a');
      line.add('left', 'b', { priority: 1 });

      expect(line.next(0)).toBe('growing');
      expect(line.take(0)).toMatchObject({ size: 3, reason: 'flush' });
    });

    it('[7.4] gives none to those who have one, though a window without urgent rows has closed since', () => {
      const line = new NamedLine();
      line.close('left', [line.part('left', 'a', { size: 3, priority: 1 })], 'full');
      line.window('right', 'r');
      line.window('left', 'b');

      line.add('left', 'c', { priority: 1 });

      expect(line.takeAll()).toEqual(['a0 a1 a2', 'r0', 'c0 b0']);
    });

    it('[7.4] gives none to those who have the later one of two, once the earlier is taken', () => {
      const line = new NamedLine();
      line.close('left', [line.part('left', 'a', { size: 3, priority: 1 })], 'full');
      line.close('left', [line.part('left', 'b', { priority: 1 })]);
      expect(line.takeNames()).toBe('a0 a1 a2');
      line.window('right', 'r');
      line.window('left', 'c');

      ['d', 'e', 'f'].forEach((name) => line.add('left', name, { priority: 1 }));

      expect(line.takeAll()).toEqual(['b0 d0 e0', 'r0', 'f0 c0']);
    });

    it('[7.4] gives them one of their own once that of others is taken', () => {
      const line = new NamedLine();
      line.close('left', [line.part('left', 'a', { priority: 1 })]);
      expect(line.takeNames()).toBe('a0');
      line.window('right', 'r');
      line.window('left', 'b');

      line.add('left', 'c', { priority: 1 });

      expect(line.takeAll()).toEqual(['c0 b0', 'r0']);
    });

    it('[7.4] [6.4] gives them one beside a batch that runs again, which runs by itself', () => {
      const line = new NamedLine();
      line.window('right', 'r');
      line.window('left', 'a');
      line.again([line.part('left', 'b', { priority: 1 })], undefined, 3);

      line.add('left', 'c', { priority: 1 });

      expect(line.takeAll()).toEqual(['b0', 'c0 a0', 'r0']);
    });
  });

  describe('that are sealed for a request that must run whole', () => {
    it('[8.3] seals the newest, so that those before it are full as they were', () => {
      const line = new NamedLine();
      ['a', 'b'].forEach((name) => line.window('left', name, 3));
      line.window('left', 'c', 2);
      line.takeNames();

      line.seal(line.lane('left'));

      expect(line.next(0)).toBe('full');
      expect(line.take(0)).toMatchObject({ reason: 'full' });
      expect(line.next(0)).toBe('growing');
      expect(line.take(0)).toMatchObject({ reason: 'flush' });
    });

    it('[8.3] takes no room from windows that come later', () => {
      const line = new NamedLine();
      line.window('left', 'a');
      line.seal(line.lane('left'));
      line.takeNames();

      line.window('left', 'b');

      expect(line.roomIn(line.lane('left'))).toBe(2);
    });

    it('[8.3] [7.4] seals one of its own lane where its newest was taken before the others, and of no other lane', () => {
      const line = new NamedLine();
      line.window('right', 'r', 2);
      line.window('left', 'a', 2);
      line.close('left', [line.part('left', 'b', { size: 3, priority: 5 })], 'full');
      expect(line.takeNames()).toBe('b0 b1 b2');

      line.seal(line.lane('left'));

      expect(line.take(0)).toMatchObject({ lane: line.lane('right'), reason: 'timeout' });
      expect(line.take(0)).toMatchObject({ lane: line.lane('left'), reason: 'flush' });
      line.window('left', 'c');
      expect(line.roomIn(line.lane('left'))).toBe(2);
    });

    it('[8.3] [4.4] gives those that were pushed out their batch before windows that join later', () => {
      const line = new NamedLine();
      const gone = line.window('left', 'a');
      line.add('left', 'X', { size: 2, whole: true });
      const places = line.window('left', 'b', 3);
      [gone, places].forEach((request) => {
        request.leave();
        line.leave(request);
      });
      line.add('left', 'Y', { size: 2, whole: true });
      line.add('left', 'Z', { size: 2, whole: true });
      expect([line.takeNames(), line.takeNames()]).toEqual(['X0 X1', 'Y0 Y1']);

      line.window('right', 'r');

      expect(line.take(0)).toMatchObject({ lane: line.lane('left'), reason: 'flush' });
      expect(line.takeAll()).toEqual(['r0']);
    });
  });

  it.each([0, 2000])('[4.7] remembers few lanes that have no rows, beside %s that have', (waiting) => {
    let made = 0;
    const order = { ageing: 1000, weights: new Map<string, number>() };
    const line = new NamedLine(1000, {
      ...order,
      get weights() {
        // Read for each lane that has its first rows.
        made++;
        return order.weights;
      },
    });
    const pass = (lane: string, part: Part<NamedRequest>): void => {
      line.join({ lane: line.lane(lane), parts: [part], size: 3, reason: 'timeout' }, 0);
      line.take(0);
    };
    for (let i = 0; i < waiting; i++) {
      line.close(`waits ${i}`, [line.part(`waits ${i}`, 'w', { priority: -1 })]);
    }
    made = 0;

    for (let i = 0; i < 10_000; i++) {
      pass(`lane ${i % 5000}`, line.part(`lane ${i % 5000}`, 'a'));
    }

    expect(made).toBe(10_000);
  });
});
