import { describe, expect, it } from '@jest/globals';
import * as fc from 'fast-check';
import { BatchClaims } from '../../../../lib/core/partitions/worker/thread-channel.js';

/** Both sides of the batch claims. */
function sides(passed = 0): { thread: BatchClaims; other: BatchClaims } {
  const other = new BatchClaims();
  new Int32Array(other.memory)[0] = passed;
  return { thread: new BatchClaims(other.memory), other };
}

describe('BatchClaims', () => {
  it('[5.6] Only batches that have not begun are revoked', () => {
    const { thread, other } = sides();

    expect([thread.tryBegin(0), thread.tryBegin(1)]).toEqual([true, true]);
    expect(other.revoke(4)).toBe(2);

    expect([thread.tryBegin(2), thread.tryBegin(3), thread.tryBegin(4)]).toEqual([
      false,
      false,
      true,
    ]);
    expect(other.revoke(5)).toBe(0);
  });

  it('[5.6] The batch counter passes 32 bits', () => {
    const { thread, other } = sides(2 ** 31 - 2);
    const last = 2 ** 31 - 2;

    expect([thread.tryBegin(last), thread.tryBegin(last + 1), thread.tryBegin(last + 2)]).toEqual([
      true,
      true,
      true,
    ]);
    expect(other.revoke(last + 5)).toBe(2);
    expect([last + 3, last + 4, last + 5].map((batch) => thread.tryBegin(batch))).toEqual([
      false,
      false,
      true,
    ]);
  });

  it('[5.6] [4.6] Each batch either begins or is revoked, in any order of the two sides', () => {
    fc.assert(
      fc.property(fc.array(fc.constantFrom('hand', 'begin', 'take back')), (steps) => {
        const { thread, other } = sides();
        let handed = 0;
        let asked = 0;
        const begun: number[] = [];
        const revoked: number[] = [];
        for (const step of steps) {
          if (step === 'hand') {
            handed++;
          } else if (step === 'take back') {
            const count = other.revoke(handed);
            revoked.push(...Array.from({ length: count }, (_, i) => handed - count + i));
          } else if (asked < handed && thread.tryBegin(asked++)) {
            begun.push(asked - 1);
          }
        }
        while (asked < handed) {
          if (thread.tryBegin(asked++)) {
            begun.push(asked - 1);
          }
        }
        expect([...begun, ...revoked].toSorted((a, b) => a - b)).toEqual(
          Array.from({ length: handed }, (_, batch) => batch),
        );
      }),
    );
  });
});
