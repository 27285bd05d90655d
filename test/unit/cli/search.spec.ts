import '../../fixtures/seed.js';
import { expect, it } from '@jest/globals';
import * as fc from 'fast-check';
import { createHistogram } from 'node:perf_hooks';
import type { LoadResult } from '../../../lib/extensions/cli/load/open-loop.js';
import {
  recommended,
  searchBranch,
  type Subject,
} from '../../../lib/extensions/cli/tune/search.js';
import { branchesFor, type Setting } from '../../../lib/extensions/cli/tune/tune.command.js';

/** A serving with so many milliseconds without load, whose latency grows as that of a queue (M/M/1). */
function queueOf(capacity: number, idle: number, opened: Setting[] = []) {
  return async (setting: Setting): Promise<Subject> => {
    opened.push(setting);
    return {
      capacity: async () => capacity,
      load: async (rate) => resultOf(rate, rate >= capacity ? 1e6 : idle / (1 - rate / capacity)),
      close: async () => undefined,
    };
  };
}

function resultOf(rate: number, latency: number): LoadResult {
  const histogram = createHistogram();
  histogram.record(Math.round(latency * 1000));
  const counts = { answered: Math.ceil(rate), refused: 0, failed: 0, unsent: 0 };
  return { rate, ...counts, seconds: 1, latency: histogram, lateness: createHistogram() };
}

const one: Setting = { partitions: 1, threads: 1, batchSize: 1 };

it('[21.7] The highest rate within the target is found, to an eighth of the capacity', async () => {
  await fc.assert(
    fc.asyncProperty(
      fc.integer({ min: 100, max: 100_000 }),
      fc.integer({ min: 1, max: 90 }),
      async (capacity, idle) => {
        const [trial] = await searchBranch([one], queueOf(capacity, idle), 100);

        const highest = capacity * (1 - idle / 100);
        const found = trial!.best?.rate ?? 0;
        expect(found).toBeLessThanOrEqual(highest * 1.001);
        expect(highest - found).toBeLessThanOrEqual(capacity / 8);
      },
    ),
  );
});

it('[21.7] No rate is found where an idle serving is too slow', async () => {
  const trials = await searchBranch([one], queueOf(1000, 200), 100);

  expect(trials[0]!.best).toBeUndefined();
  expect(recommended(trials)).toBeUndefined();
});

it('[21.7] A branch ends when two settings in a row are no faster', async () => {
  const opened: Setting[] = [];
  const branch = [1, 2, 4, 8, 16].map((batchSize) => ({ ...one, batchSize }));
  const faster = queueOf(2000, 10, opened);
  const slower = queueOf(1000, 10, opened);

  const trials = await searchBranch(
    branch,
    (setting) => (setting.batchSize === 2 ? faster(setting) : slower(setting)),
    100,
  );

  expect(opened.map(({ batchSize }) => batchSize)).toEqual([1, 2, 4, 8]);
  expect(trials).toHaveLength(4);
});

it('[21.7] The smallest of nearly equal settings is recommended', async () => {
  const rates = new Map([
    [1, 900],
    [2, 970],
    [4, 1000],
  ]);
  const branch = [...rates.keys()].map((batchSize) => ({ ...one, batchSize }));
  const trials = await searchBranch(
    branch,
    (setting) => queueOf(rates.get(setting.batchSize)!, 1)(setting),
    100,
  );

  expect(recommended(trials)!.setting.batchSize).toBe(2);
});

it('[21.7] Settings share the cores between partitions and their threads', () => {
  const pairs = branchesFor(6, [4, 1]).map((branch) => branch.map(Object.values));

  expect(pairs).toEqual([
    [
      [1, 6, 1],
      [1, 6, 4],
    ],
    [
      [2, 3, 1],
      [2, 3, 4],
    ],
    [
      [4, 1, 1],
      [4, 1, 4],
    ],
    [
      [6, 1, 1],
      [6, 1, 4],
    ],
  ]);
});
