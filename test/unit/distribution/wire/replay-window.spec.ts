import { describe, expect, it } from '@jest/globals';
import * as fc from 'fast-check';
import { ReplayWindow } from '../../../../lib/extensions/distribution/wire/signature.js';

describe('ReplayWindow', () => {
  it('[11] Each counter of each sender is accepted once, in any order', () => {
    const packets = fc.array(
      fc.tuple(
        fc.constantFrom('a', 'b'),
        fc.oneof(fc.nat({ max: 20 }), fc.nat({ max: 20_000 }), fc.maxSafeNat()),
      ),
    );
    fc.assert(
      fc.property(packets, (sent) => {
        const window = new ReplayWindow();
        const added = new Set<string>();
        for (const [sender, counter] of sent) {
          const name = `${sender} ${counter}`;
          expect(window.add(sender, counter, 0)).toBe(!added.has(name));
          added.add(name);
        }
      }),
    );
  });

  it('[11] A bit is kept for each packet of the last minutes, and nothing for older ones', () => {
    const window = new ReplayWindow();
    for (let counter = 0; counter < 100_000; counter++) {
      window.add('a', counter, counter);
      if (counter % 1000 === 0) {
        window.dropBefore(counter - 20_000);
      }
    }

    expect(window.pages).toBeLessThanOrEqual(7);
    expect(window.add('a', 99_999, 99_999)).toBe(false);
    expect(window.add('a', 80_000, 99_999)).toBe(false);
    window.dropBefore(100_000);
    expect(window.pages).toBe(0);
  });

  it('[11] A page is kept as long as one of its packets is recent', () => {
    const window = new ReplayWindow();
    window.add('a', 2, 100);
    window.add('a', 1, 500);
    window.dropBefore(500);

    expect(window.add('a', 2, 600)).toBe(false);
    expect(window.add('a', 1, 600)).toBe(false);
    expect(window.add('a', 0, 600)).toBe(true);
  });

  it('[S3] Counters of a dropped page are refused, and later ones are accepted', () => {
    const window = new ReplayWindow();
    window.add('a', 5, 0);
    window.add('b', 5, 0);
    window.dropBefore(1e9);

    expect(window.pages).toBe(0);
    expect([3, 5, 6, 4096].map((counter) => window.add('a', counter, 0))).toEqual([
      false,
      false,
      true,
      true,
    ]);
    expect(window.add('c', 5, 0)).toBe(true);
  });

  it('[S3] The counters of 65536 senders are remembered', () => {
    const window = new ReplayWindow();
    for (let sender = 0; sender < 2 ** 16; sender++) {
      window.add(`${sender}`, 7, 0);
    }
    window.dropBefore(1);
    window.add('young', 7, 1);

    expect(window.add('1', 7, 1)).toBe(false);
    expect(window.add('65535', 7, 1)).toBe(false);
  });
});
