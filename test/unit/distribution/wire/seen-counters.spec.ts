import { describe, expect, it } from '@jest/globals';
import * as fc from 'fast-check';
import { ReplayWindow } from '../../../../lib/distribution/wire/signature.js';

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
        const seen = new ReplayWindow();
        const known = new Set<string>();
        for (const [sender, counter] of sent) {
          const name = `${sender} ${counter}`;
          expect(seen.add(sender, counter, 0)).toBe(!known.has(name));
          known.add(name);
        }
      }),
    );
  });

  it('[11] A bit is kept for each packet of the last minutes, and nothing for older ones', () => {
    const seen = new ReplayWindow();
    for (let counter = 0; counter < 100_000; counter++) {
      seen.add('a', counter, counter);
      if (counter % 1000 === 0) {
        seen.forgetBefore(counter - 20_000);
      }
    }

    expect(seen.pages).toBeLessThanOrEqual(7);
    expect(seen.add('a', 99_999, 99_999)).toBe(false);
    expect(seen.add('a', 80_000, 99_999)).toBe(false);
    seen.forgetBefore(100_000);
    expect(seen.pages).toBe(0);
  });

  it('[11] A page is kept as long as one of its packets is recent', () => {
    const seen = new ReplayWindow();
    seen.add('a', 2, 100);
    seen.add('a', 1, 500);
    seen.forgetBefore(500);

    expect(seen.add('a', 2, 600)).toBe(false);
    expect(seen.add('a', 1, 600)).toBe(false);
    expect(seen.add('a', 0, 600)).toBe(true);
  });

  it('[S3] Counters of a dropped page are refused, and later ones are accepted', () => {
    const seen = new ReplayWindow();
    seen.add('a', 5, 0);
    seen.add('b', 5, 0);
    seen.forgetBefore(1e9);

    expect(seen.pages).toBe(0);
    expect([3, 5, 6, 4096].map((counter) => seen.add('a', counter, 0))).toEqual([
      false,
      false,
      true,
      true,
    ]);
    expect(seen.add('c', 5, 0)).toBe(true);
  });

  it('[S3] The counters of 65536 senders are remembered', () => {
    const seen = new ReplayWindow();
    for (let sender = 0; sender < 2 ** 16; sender++) {
      seen.add(`${sender}`, 7, 0);
    }
    seen.forgetBefore(1);
    seen.add('young', 7, 1);

    expect(seen.add('1', 7, 1)).toBe(false);
    expect(seen.add('65535', 7, 1)).toBe(false);
  });
});
