import { describe, expect, it } from '@jest/globals';
import * as fc from 'fast-check';
import { CallTable } from '../../../../lib/extensions/distribution/calls/call-table.js';

const sorted = (calls: Iterable<{ readonly call: number }>): number[] =>
  [...calls].map(({ call }) => call).toSorted((a, b) => a - b);

describe('The table of calls', () => {
  it('[11] finds every call by its number, whichever numbers share a place', () => {
    const numbers = fc.oneof(
      fc.nat({ max: 20 }),
      fc.nat({ max: 20 }).map((number) => 64 * number),
      fc.maxSafeNat(),
    );
    const steps = fc.array(fc.record({ call: numbers, isAdded: fc.boolean() }), {
      maxLength: 300,
    });
    fc.assert(
      fc.property(steps, (list) => {
        const table = new CallTable<{ readonly call: number }>();
        const map = new Map<number, object>();
        for (const { call, isAdded } of list) {
          const entry = { call };
          if (isAdded) {
            table.add(entry);
            map.set(call, entry);
          } else {
            table.delete(call);
            map.delete(call);
          }
          expect(table.get(call)).toBe(map.get(call));
          expect(table.size).toBe(map.size);
        }
        expect(sorted(table.all())).toEqual([...map.keys()].toSorted((a, b) => a - b));
      }),
    );
  });

  it('[FR14] keeps a later call with the number of one that ends', () => {
    const table = new CallTable<{ readonly call: number }>();
    const [first, second] = [{ call: 7 }, { call: 7 }];
    table.add(first);
    table.add(second);

    table.remove(first);
    expect([table.get(7), table.size]).toEqual([second, 1]);
    table.remove(second);
    expect([table.get(7), table.size]).toEqual([undefined, 0]);
  });

  it('[11] gives numbers that no call has, also while one call stays for long', () => {
    const table = new CallTable<{ readonly call: number }>();
    const lasting = Array.from({ length: 40 }, (_, i) => i);
    lasting.forEach((call) => table.add({ call }));
    let last = 0;
    const given = new Set(lasting);
    for (let i = 0; i < 1000; i++) {
      last = table.nextAfter(last);
      expect(given.has(last)).toBe(false);
      given.add(last);
      table.add({ call: last });
      if (i % 2 === 0) {
        table.delete(last);
      }
    }
    expect(table.size).toBe(540);
    lasting.forEach((call) => expect(table.get(call)).toEqual({ call }));
  });
});
