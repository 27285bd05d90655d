import { describe, expect, it } from '@jest/globals';
import { RunTimeSpread } from '../../../lib/core/batching/run-times.js';

function spreadOf(ratios: readonly number[]): number {
  const spread = new RunTimeSpread();
  ratios.forEach((ratio) => spread.learn(ratio));
  return spread.value;
}

const times = (count: number, ratio: number): number[] =>
  Array.from({ length: count }, () => ratio);

describe('RunTimeSpread', () => {
  it('[15.5] [A2] The spread that is assumed at first counts as much as sixteen runs', () => {
    expect(spreadOf([])).toBe(1.5);
    expect(spreadOf(times(16, 1.1))).toBeCloseTo(1.3);
    expect(spreadOf(times(144, 1.1))).toBeCloseTo(1.14);
    expect(spreadOf(times(300, 1.1))).toBeCloseTo(1.12, 2);
  });

  it('[15.5] The spread is the ratio that 99 of 100 runs stay below', () => {
    expect(spreadOf([...times(297, 1.1), ...times(3, 2)])).toBeCloseTo(1.12, 2);
    expect(spreadOf([...times(296, 1.1), ...times(4, 2)])).toBeCloseTo(1.97, 2);
  });

  it('[15.5] The spread forgets runs after 300 later ones', () => {
    expect(spreadOf([...times(10, 2.5), ...times(300, 1.2)])).toBeCloseTo(1.22, 2);
  });

  it('[15.5] A run counts as at most three times its expected time, and the spread is never below 1', () => {
    expect(spreadOf(times(300, 50))).toBeCloseTo(2.92, 2);
    expect(spreadOf(times(300, 0.5))).toBe(1);
  });
});
