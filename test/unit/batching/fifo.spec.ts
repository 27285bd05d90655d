import { describe, expect, it, jest } from '@jest/globals';
import * as fc from 'fast-check';
import { Fifo } from '../../../lib/core/batching/fair-queue.js';

const command = fc.oneof(
  { weight: 3, arbitrary: fc.record({ do: fc.constant('push' as const), item: fc.nat() }) },
  { weight: 3, arbitrary: fc.record({ do: fc.constant('shift' as const), item: fc.nat() }) },
  fc.record({
    do: fc.constantFrom('replace' as const, 'replaceLast' as const, 'keep' as const),
    item: fc.nat(),
  }),
);

describe('Fifo', () => {
  it('A Fifo behaves like a list from which the first item is taken, under any sequence of operations', () => {
    fc.assert(
      fc.property(fc.array(command, { maxLength: 60 }), (commands) => {
        const fifo = new Fifo<number>();
        const list: number[] = [];
        for (const { do: what, item } of commands) {
          if (what === 'push') {
            fifo.push(item);
            list.push(item);
          } else if (what === 'shift') {
            expect(fifo.shift()).toBe(list.shift());
          } else if (what === 'keep') {
            fifo.keep((kept) => kept % 2 === item % 2);
            list.splice(0, list.length, ...list.filter((kept) => kept % 2 === item % 2));
          } else if (list.length > 0) {
            fifo[what](item);
            list[what === 'replace' ? 0 : list.length - 1] = item;
          }
          expect([fifo.length, fifo.peek(), fifo.peekLast(), ...fifo]).toEqual([
            list.length,
            list[0],
            list.at(-1),
            ...list,
          ]);
        }
      }),
    );
  });

  it('A Fifo moves each item at most once, for any number of items', () => {
    let moved = 0;
    const fifo = new Fifo<number>();
    const { splice } = Array.prototype;
    const spy = jest.spyOn(Array.prototype, 'splice').mockImplementation(function (
      this: unknown[],
      ...args
    ) {
      const removed = splice.apply(this, args);
      moved += this.length;
      return removed;
    });

    for (let i = 0; i < 30_000; i++) {
      fifo.push(i);
      if (i % 3 === 0) {
        fifo.shift();
      }
    }
    while (fifo.length > 0) {
      fifo.shift();
    }
    spy.mockRestore();

    expect(moved).toBeGreaterThan(0);
    expect(moved).toBeLessThanOrEqual(30_000);
  });

  it('An empty Fifo returns undefined, however often it is read', () => {
    const fifo = new Fifo<string>();

    expect([fifo.shift(), fifo.shift(), fifo.peek(), fifo.length]).toEqual([
      undefined,
      undefined,
      undefined,
      0,
    ]);
    fifo.push('a');
    expect([fifo.shift(), fifo.length]).toEqual(['a', 0]);
  });
});
