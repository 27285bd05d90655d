import { describe, expect, it } from '@jest/globals';
import * as fc from 'fast-check';
import { float16OfNumber, numberOfFloat16 } from '../../../../lib/core/batch/tensor.js';

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
    expect(numberOfFloat16(bits)).toBe(number);
    expect(float16OfNumber(number)).toBe(bits);
  });

  it('[11] A number keeps the bits from which it was read', () => {
    const changed = Array.from({ length: 2 ** 16 }, (_, bits) => bits).filter(
      (bits) =>
        !Number.isNaN(numberOfFloat16(bits)) && float16OfNumber(numberOfFloat16(bits)) !== bits,
    );

    expect(changed).toEqual([]);
  });

  it('[11] A number is rounded to the nearest half, and ties to even', () => {
    fc.assert(
      fc.property(fc.double({ min: -65_504, max: 65_504, noNaN: true }), (number) => {
        const half = float16OfNumber(number);
        const distance = (bits: number): number => Math.abs(numberOfFloat16(bits) - number);
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
      ].map(float16OfNumber),
    ).toEqual([0x3c00, 0x3c02, 0x4000, 0, 2, 0x7bff, 0x7c00, 0xfc00]);
  });

  it('[11] A number beside a power of two is rounded to it', () => {
    const powers = Array.from({ length: 41 }, (_, i) => 2 ** (i - 24));
    const bits = powers.map(float16OfNumber);

    expect(bits.map(numberOfFloat16)).toEqual(
      powers.map((power) => (power > 65504 ? Infinity : power)),
    );
    expect(powers.map((power) => float16OfNumber(power * (1 - 2 ** -53)))).toEqual(bits);
    expect(powers.map((power) => float16OfNumber(power * (1 + 2 ** -52)))).toEqual(bits);
  });
});
