import { describe, expect, it } from '@jest/globals';
import * as fc from 'fast-check';
import { halfOfNumber, numberOfHalf } from '../../../../lib/distribution/json/half.js';

describe('A 16-bit float', () => {
  it.each([
    [0x0000, 0],
    [0x8000, -0],
    [0x3c00, 1],
    [0xc000, -2],
    [0x3555, 0.333251953125],
    [0x7bff, 65504],
    [0x0400, 2 ** -14],
    [0x03ff, 2 ** -14 - 2 ** -24],
    [0x0001, 2 ** -24],
    [0x7c00, Infinity],
    [0xfc00, -Infinity],
    [0x7e00, NaN],
  ])('[11] The bits %i are the number %d', (bits, number) => {
    expect(numberOfHalf(bits)).toBe(number);
    expect(halfOfNumber(number)).toBe(bits);
  });

  it('[11] A number keeps the bits from which it was read', () => {
    const changed = Array.from({ length: 2 ** 16 }, (_, bits) => bits).filter(
      (bits) => !Number.isNaN(numberOfHalf(bits)) && halfOfNumber(numberOfHalf(bits)) !== bits,
    );

    expect(changed).toEqual([]);
  });

  it('[11] A number is rounded to the nearest half, and ties to even', () => {
    fc.assert(
      fc.property(fc.double({ min: -65_504, max: 65_504, noNaN: true }), (number) => {
        const half = halfOfNumber(number);
        const distance = (bits: number): number => Math.abs(numberOfHalf(bits) - number);
        const neighbours = [half - 1, half + 1].filter(
          (bits) => bits >> 15 === half >> 15 && (bits & 0x7fff) <= 0x7bff,
        );
        for (const bits of neighbours) {
          expect(distance(half)).toBeLessThanOrEqual(distance(bits));
          expect(distance(half) < distance(bits) || half % 2 === 0).toBe(true);
        }
      }),
    );
    expect(
      [
        1 + 2 ** -11,
        1 + 3 * 2 ** -11,
        2 - 2 ** -12,
        2 ** -25,
        3 * 2 ** -25,
        65_519.99,
        65_520,
        -1e300,
      ].map(halfOfNumber),
    ).toEqual([0x3c00, 0x3c02, 0x4000, 0, 2, 0x7bff, 0x7c00, 0xfc00]);
  });
});
