import { describe, expect, it } from '@jest/globals';
import * as fc from 'fast-check';
import {
  curves,
  isBelowCapacity,
  loads,
  outcomeOf,
  promises,
} from '../../fixtures/batching/oracle.js';

/** Other seeds with `npm run test:random`, which also runs the slow cells. */
const { seed = 1 } = fc.readConfigureGlobal();
const isRandom = seed !== 1;

/** Loads and promises of which one run takes seconds of processor time. */
const slow = ['1', '400 callers', '64 callers', 'timeout 200'];

const percent = (share: number): string => (100 * share).toFixed(1).padStart(5);

/**
 * The least share of the possible calls that are answered, and of the admitted that are in time.
 * Other seeds vary, above all where chance decides.
 */
function boundsOf(curve: string, load: string): { answered: number; kept: number } {
  const stated = exceptions.find((each) => each.curve.includes(curve) && each.load.includes(load));
  const bounds = { answered: isBelowCapacity(load) ? 0.98 : 0.95, kept: 0.99, ...stated?.bounds };
  const slack = isRandom ? (stated ? 0.1 : 0.01) : 0;
  return { answered: bounds.answered - slack, kept: bounds.kept - slack };
}

/** Cells that do not reach the figures, with bounds of their own and the reason. */
const exceptions: readonly {
  readonly curve: readonly string[];
  readonly load: readonly string[];
  readonly why: string;
  readonly bounds: { readonly answered?: number; readonly kept?: number };
}[] = [
  {
    curve: ['bimodal'],
    load: ['bursts of 300', 'bursts of 32'],
    why: 'Few batches, of which one of twenty takes three times as long.',
    bounds: { answered: 0.6, kept: 0.5 },
  },
  {
    curve: ['bimodal'],
    load: Object.keys(loads),
    why: 'One run of twenty takes three times as long, and only the other scheduler knows which. A call is admitted with room for it.',
    bounds: { answered: 0.58, kept: 0.9 },
  },
  {
    curve: ['convex'],
    load: ['bursts of 300'],
    why: 'Five bursts in all: the first ones are met before the sizes of batches are known.',
    bounds: { answered: 0.4 },
  },
  {
    curve: ['drifting', 'slow for a while'],
    load: ['bursts of 300'],
    why: 'The same, and what the other bursts taught no longer holds.',
    bounds: { answered: 0.6, kept: 0.9 },
  },
  {
    curve: Object.keys(curves),
    load: ['bursts of 300'],
    why: 'The same.',
    bounds: { answered: 0.6 },
  },
  {
    curve: ['drifting'],
    load: Object.keys(loads),
    why: 'The other scheduler knows the speed of each batch before it starts. Here it is that of the batches before, also after a night.',
    bounds: { answered: 0.86, kept: 0.9 },
  },
  {
    curve: ['slow for a while'],
    load: Object.keys(loads),
    why: 'The other scheduler knows when the machine becomes slow, and when it recovers.',
    bounds: { answered: 0.82, kept: 0.84 },
  },
  {
    curve: ['convex'],
    load: ['1.5', '3', '64 callers', '400 callers'],
    why: 'Smaller batches are the best here, and are tried once in 16 batches.',
    bounds: { answered: 0.76 },
  },
  {
    curve: ['flat'],
    load: ['0.9', '1'],
    why: 'A batch that fits is two fifths of the time, which leaves little for chance.',
    bounds: { answered: 0.93 },
  },
];

describe('Admission beside a scheduler that knows every run time', () => {
  it.each(Object.keys(curves))(
    '[A1] [A2] [A3] [A5] The batcher answers the calls that fit, and those that it admits in time, with run times that are: %s',
    async (curve) => {
      const lines: string[] = [];
      const misses: string[] = [];
      for (const promise of Object.keys(promises).filter(
        (name) => isRandom || !slow.includes(name),
      )) {
        for (const load of Object.keys(loads).filter((name) => isRandom || !slow.includes(name))) {
          const { possible, share, kept } = await outcomeOf({ curve, load, promise, seed });
          const bounds = boundsOf(curve, load);
          const line = `${curve.padEnd(17)} ${promise.padEnd(12)} ${load.padEnd(24)} ${String(possible).padStart(6)} possible ${percent(share)} % answered ${percent(kept)} % in time`;
          lines.push(line);
          if (share < bounds.answered || kept < bounds.kept) {
            misses.push(line);
          }
        }
      }
      process.stdout.write(`${lines.join('\n')}\n`);
      expect(misses).toEqual([]);
    },
  );
});
