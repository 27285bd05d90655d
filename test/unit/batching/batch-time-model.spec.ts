import { describe, expect, it } from '@jest/globals';
import * as fc from 'fast-check';
import { BatchTimeModel } from '../../../lib/batching/batch-time-model.js';

function paceOf(
  batches: readonly (readonly [rows: number, milliseconds: number])[],
): BatchTimeModel {
  const pace = new BatchTimeModel();
  batches.forEach(([rows, milliseconds]) => pace.learn(rows, milliseconds));
  return pace;
}

const times = <T>(count: number, value: T): T[] => Array.from({ length: count }, () => value);

describe('BatchTimeModel', () => {
  it('[7.1] The model recovers a linear run time from batches of different sizes', () => {
    fc.assert(
      fc.property(
        fc.integer({ min: 0, max: 500 }),
        fc.integer({ min: 0, max: 50 }),
        fc.array(fc.integer({ min: 1, max: 512 }), { minLength: 8, maxLength: 60 }),
        fc.integer({ min: 1, max: 2048 }),
        (start, perRow, sizes, asked) => {
          fc.pre(new Set(sizes.slice(-20)).size > 1);
          const pace = paceOf(sizes.map((rows) => [rows, start + perRow * rows]));

          expect(pace.predict(asked)! / Math.max(1, start + perRow * asked)).toBeCloseTo(
            start + perRow > 0 ? 1 : 0,
            2,
          );
        },
      ),
    );
  });

  it('[7.1] The model predicts nothing before its eighth batch', () => {
    const pace = paceOf(times(7, [4, 10]));
    expect(pace.predict(4)).toBeUndefined();

    pace.learn(4, 10);
    expect(pace.predict(4)).toBeCloseTo(10);
  });

  it('[7.1] After batches of one size, smaller batches are expected to take as long and larger ones in proportion to their rows', () => {
    const pace = paceOf(times(20, [4, 10]));

    expect([1, 4, 8, 6].map((rows) => pace.predict(rows))).toEqual(
      [10, 10, 20, 15].map((time) => expect.closeTo(time)),
    );
  });

  it('[7.1] Large batches of one size do not mislead the model through rounding errors', () => {
    for (let rows = 100_000; rows < 100_100; rows++) {
      const pace = paceOf(times(20, [rows, 10]));

      expect([pace.predict(1), pace.predict(2 * rows)]).toEqual([
        expect.closeTo(10),
        expect.closeTo(20),
      ]);
    }
  });

  it('[7.1] The model follows a change of the run time, since older batches lose weight', () => {
    const pace = paceOf(times(200, [4, 100]));
    expect(pace.predict(4)).toBeCloseTo(100);

    times(14, 0).forEach(() => pace.learn(4, 10));
    const half = pace.predict(4)!;
    times(100, 0).forEach(() => pace.learn(4, 10));

    expect(half).toBeGreaterThan(45);
    expect(half).toBeLessThan(60);
    expect(pace.predict(4)).toBeGreaterThan(10);
    expect(pace.predict(4)).toBeLessThan(11);
  });

  it('[7.1] The model follows a change of the time per row', () => {
    const pace = paceOf(Array.from({ length: 200 }, (_, i) => [1 + (i % 8), 100 * (1 + (i % 8))]));

    Array.from({ length: 200 }, (_, i) => pace.learn(1 + (i % 8), 5 + (i % 8)));

    expect(pace.predict(32)).toBeCloseTo(36, 0);
  });

  it('[7.1] The predicted time never decreases with the number of rows and is never negative', () => {
    fc.assert(
      fc.property(
        fc.array(fc.tuple(fc.integer({ min: 1, max: 64 }), fc.nat(1000)), {
          minLength: 8,
          maxLength: 40,
        }),
        (batches) => {
          const expected = [1, 2, 8, 64, 500].map((rows) => paceOf(batches).predict(rows)!);

          expect(expected.toSorted((a, b) => a - b)).toEqual(expected);
          expect(expected[0]).toBeGreaterThanOrEqual(0);
        },
      ),
    );
  });

  it('[7.1] When larger batches seem faster, all sizes are predicted to take the average time', () => {
    const pace = paceOf([...times(10, [8, 10] as const), ...times(10, [2, 30] as const)]);

    expect(pace.predict(1)).toBe(pace.predict(64));
    expect(pace.predict(1)).toBeGreaterThan(20);
    expect(pace.predict(1)).toBeLessThan(30);
  });

  it('[7.1] When the fitted line would start below 0, the model takes the best line through the origin', () => {
    const pace = paceOf(Array.from({ length: 400 }, (_, i) => (i % 2 === 0 ? [2, 0] : [4, 100])));

    const perRow = pace.predict(1)!;
    expect(perRow).toBeGreaterThan(20);
    expect(perRow).toBeLessThan(20.5);
    expect([0, 3, 64].map((rows) => pace.predict(rows))).toEqual(
      [0, 3, 64].map((rows) => expect.closeTo(rows * perRow)),
    );
  });
});
