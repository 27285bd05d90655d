import { describe, expect, it } from '@jest/globals';
import * as fc from 'fast-check';
import { RunTimes, RunTimeSpread } from '../../../lib/core/batching/run-times.js';

function timesOf(batches: readonly (readonly [rows: number, milliseconds: number])[]): RunTimes {
  const times = new RunTimes();
  batches.forEach(([rows, milliseconds]) => times.learn(rows, milliseconds));
  return times;
}

const repeated = <T>(count: number, value: T): T[] => Array.from({ length: count }, () => value);

const convex = (rows: number): number => 4 + rows ** 2 / 40;

describe('RunTimes', () => {
  it('[7.1] Run times are not believed before the eighth batch', () => {
    const times = timesOf(repeated(7, [4, 10]));
    expect([times.expected(4), times.isBelieved]).toEqual([undefined, false]);

    times.learn(4, 10);
    expect(times.expected(4)).toBeCloseTo(10);
  });

  it('[7.1] Times between the sizes that have run are interpolated', () => {
    const times = timesOf([...repeated(8, [1, 5] as const), ...repeated(8, [8, 12] as const)]);

    expect([1, 4, 8].map((rows) => times.expected(rows))).toEqual(
      [5, 8, 12].map((time) => expect.closeTo(time)),
    );
  });

  it('[A1] [A2] A size that has not run is hoped to be as fast as the next smaller one', () => {
    const times = timesOf(repeated(10, [1, 20]));

    expect([1, 2, 32].map((rows) => times.hoped(rows))).toEqual([20, 20, 20]);
    expect(times.expected(2)).toBeCloseTo(40);
  });

  it('[A1] Runs that take no measurable time are learned as very short ones', () => {
    const times = timesOf([...repeated(4, [1, 1] as const), ...repeated(6, [1, 0] as const)]);

    expect(times.hoped(1)).toBeGreaterThan(0);
    expect(times.overrun).toBeGreaterThanOrEqual(1);
    expect(times.hoped(4)).toBeLessThan(2);
  });

  it('[7.1] Of short runs, one is learned in a millisecond of them', () => {
    const times = timesOf(repeated(10, [32, 0.1]));

    repeated(22, 0).forEach(() => times.learn(32, 0.1));

    expect(times.count).toBe(10);
    times.learn(64, 0.2);
    expect(times.count).toBe(11);
  });

  it('[7.1] Pauses among short runs do not count more than the runs', () => {
    const times = timesOf(
      repeated(20_000, 0).map((_, index) => [32, index % 100 === 99 ? 5 : 0.02]),
    );

    expect(times.expected(32)).toBeLessThan(0.04);
  });

  it('[A1] Sizes keep what was learned of them while 400 batches of one row run', () => {
    const times = timesOf([...repeated(8, [32, 34] as const), ...repeated(400, [1, 5] as const)]);

    expect(times.expected(32)).toBeCloseTo(34);
  });

  it('[A1] A slow first run of a size does not rule it out for ever', () => {
    const times = timesOf([...repeated(8, [1, 10] as const), [32, 1000]]);
    expect(times.hoped(32)).toBeCloseTo(1000);

    repeated(128, 0).forEach(() => times.learn(1, 10));

    expect(times.hoped(32)).toBeCloseTo(10);
  });

  it('[7.1] A machine that becomes slower makes all sizes slower', () => {
    const times = timesOf([...repeated(8, [1, 5] as const), ...repeated(8, [32, 20] as const)]);

    repeated(40, 0).forEach(() => times.learn(32, 40));

    expect(times.expected(32)).toBeCloseTo(40, 0);
    expect(times.expected(1)).toBeGreaterThan(7);
  });

  it('[7.1] Expected times never decrease with the number of rows and are never negative', () => {
    fc.assert(
      fc.property(
        fc.array(fc.tuple(fc.integer({ min: 1, max: 64 }), fc.integer({ min: 1, max: 1000 })), {
          minLength: 8,
          maxLength: 40,
        }),
        (batches) => {
          const expected = [1, 2, 8, 64].map((rows) => timesOf(batches).expected(rows)!);

          expect(expected.toSorted((a, b) => a - b)).toEqual(expected);
          expect(expected[0]).toBeGreaterThanOrEqual(0);
        },
      ),
    );
  });

  it('[7.1] The best size is the one above which batches carry less', () => {
    const sizes = [1, 2, 4, 8, 16, 32];

    expect(timesOf(sizes.flatMap((rows) => repeated(8, [rows, convex(rows)] as const))).best).toBe(
      16,
    );
    expect(timesOf(sizes.flatMap((rows) => repeated(8, [rows, 20] as const))).best).toBe(Infinity);
  });
});

function spreadOf(ratios: readonly number[]): number {
  const spread = new RunTimeSpread();
  ratios.forEach((ratio) => spread.learn(ratio));
  return spread.value;
}

describe('RunTimeSpread', () => {
  it('[15.5] [A2] The spread that is assumed at first counts as much as sixteen runs', () => {
    expect(spreadOf([])).toBe(1.5);
    expect(spreadOf(repeated(16, 1.1))).toBeCloseTo(1.3);
    expect(spreadOf(repeated(144, 1.1))).toBeCloseTo(1.14);
    expect(spreadOf(repeated(300, 1.1))).toBeCloseTo(1.12, 2);
  });

  it('[15.5] The spread is the ratio that 99 of 100 runs stay below', () => {
    expect(spreadOf([...repeated(297, 1.1), ...repeated(3, 2)])).toBeCloseTo(1.12, 2);
    expect(spreadOf([...repeated(296, 1.1), ...repeated(4, 2)])).toBeCloseTo(1.97, 2);
  });

  it('[15.5] The spread forgets runs after 300 later ones', () => {
    expect(spreadOf([...repeated(10, 2.5), ...repeated(300, 1.2)])).toBeCloseTo(1.22, 2);
  });

  it('[15.5] A run counts as at most three times its expected time, and the spread is never below 1', () => {
    expect(spreadOf(repeated(300, 50))).toBeCloseTo(2.92, 2);
    expect(spreadOf(repeated(300, 0.5))).toBe(1);
  });
});
