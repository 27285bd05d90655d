import { expect, it } from '@jest/globals';
import {
  isGeneratorLate,
  openLoop,
  percentile,
} from '../../../lib/extensions/cli/load/open-loop.js';
import { OverloadedError } from '../../../lib/index.js';
import { withResolvers } from '../../fixtures/async/with-resolvers.js';
import { randomFrom } from '../../chaos/random.js';

/** The number of arrivals of the same random numbers, by their definition. */
function arrivals(rate: number, duration: number, seed: number): number {
  const random = randomFrom(seed);
  let count = 0;
  for (let due = 0; due < duration; due += -Math.log(1 - random()) / rate) {
    count++;
  }
  return count;
}

const load = { rate: 4000, duration: 0.1, mostOutstanding: 10_000 };

it('[21.6] Each call that is due is sent, and counted by what became of it', async () => {
  let calls = 0;
  const call = async (): Promise<void> => {
    const number = calls++;
    if (number % 10 === 0) {
      throw new OverloadedError('full');
    }
    if (number % 10 === 1) {
      throw new Error('broken');
    }
  };

  const result = await openLoop({ ...load, call, random: randomFrom(1) });

  const due = arrivals(load.rate, load.duration, 1);
  expect(calls).toBe(due);
  expect(result).toMatchObject({
    refused: Math.ceil(due / 10),
    failed: Math.ceil((due - 1) / 10),
    unsent: 0,
    error: new Error('broken'),
  });
  expect(result.answered + result.refused + result.failed).toBe(due);
  expect(result.latency.count).toBe(result.answered);
});

it('[21.6] Calls beyond the limit of those that wait are counted, and not sent', async () => {
  const { promise: opened, resolve: answer } = withResolvers();
  let calls = 0;
  const call = (): Promise<void> => {
    calls++;
    return opened;
  };
  const due = arrivals(load.rate, load.duration, 2);
  const draw = randomFrom(2);
  let drawn = 0;
  const random = (): number => {
    // Each call draws the time of the next one.
    if (++drawn === due) {
      setImmediate(answer);
    }
    return draw();
  };

  const { answered, unsent } = await openLoop({ ...load, mostOutstanding: 5, call, random });

  expect(calls).toBe(5);
  expect(answered).toBe(5);
  expect(unsent).toBe(due - 5);
});

it('[21.6] A call that is sent late has its latency counted from when it was due', async () => {
  let isFirst = true;
  const call = async (): Promise<void> => {
    if (isFirst) {
      isFirst = false;
      // Holds the thread, so that all others are late.
      Atomics.wait(new Int32Array(new SharedArrayBuffer(4)), 0, 0, 120);
    }
  };

  const result = await openLoop({ ...load, call });

  expect(percentile(result, 50)).toBeGreaterThan(20);
  expect(isGeneratorLate(result)).toBe(true);
});
