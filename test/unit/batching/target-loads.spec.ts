import { describe, expect, it } from '@jest/globals';
import { bestFixedGoodput } from '../../fixtures/batching/fixed-size.js';
import { PoissonLoad, type PoissonLoadOptions } from '../../fixtures/batching/poisson-load.js';

const within = 50;
const limits = { batchSize: 32, batchTimeout: 0, latencyTarget: within };
/** The sizes that a warm-up runs. */
const warmUp = [1, 32, 1, 32, 1, 32, 1, 32];

/** Milliseconds that a batch takes. */
const lines = {
  'a flat line': (rows: number) => 8 + 0.3 * rows,
  'a line': (rows: number) => 3 + rows,
  'a steep line': (rows: number) => 0.5 + 1.5 * rows,
};
const middle = lines['a line'];
const loads = [0.1, 0.5, 0.8, 1, 1.5, 3];

const drifting = (rows: number, at: number): number => middle(rows) * (1 + at / 25_000);

const doubled = (rows: number, at: number): number => middle(rows) * (at < 4000 ? 1 : 2);

const halved = (rows: number, at: number): number => middle(rows) / (at < 4000 ? 1 : 2);

type Options = Partial<PoissonLoadOptions> & { readonly load: number };

/** A load in multiples of the rows that batches of 32 carry. */
function loadOf(line: PoissonLoadOptions['timeOf'], options: Options): PoissonLoad {
  const { load, partitions = 1 } = options;
  const rate = (load * partitions * 32) / line(32, 0);
  return new PoissonLoad({
    limits,
    timeOf: line,
    rate,
    within,
    from: 2000,
    until: 7000,
    ...options,
  });
}

describe('A latency target under a load', () => {
  describe.each(Object.entries(lines))('with %s of run times', (_, timeOf) => {
    it.each(loads)(
      '[15.1] [15.3] answers 99 of 100 admitted rows in time, as many as the best fixed size, at %d times the capacity',
      async (load) => {
        const { share, admitted, refused, inTime } = await loadOf(timeOf, { load }).play();

        const rate = (load * 32) / timeOf(32);
        const best = bestFixedGoodput({ timeOf, rate, within, milliseconds: 5000 });
        const possible = Math.min(best * 5000, admitted + refused);
        expect(share).toBeGreaterThanOrEqual(0.99);
        expect(inTime / possible).toBeGreaterThanOrEqual(0.95);
      },
    );

    it('[15.6] holds from the first row on after a warm-up, at three times the capacity', async () => {
      const { share } = await loadOf(timeOf, { load: 3, warmUp, from: 0, until: 2000 }).play();

      expect(share).toBeGreaterThanOrEqual(0.99);
    });
  });

  it.each([{ partitions: 2 }, { partitions: 4 }, { prefetch: 1 }, { partitions: 2, prefetch: 1 }])(
    '[15.1] answers 99 of 100 admitted rows in time at twice the capacity with %j',
    async (partitions) => {
      const { share, goodput } = await loadOf(middle, { load: 2, ...partitions }).play();

      const one = await loadOf(middle, { load: 2 }).play();
      expect(share).toBeGreaterThanOrEqual(0.99);
      expect(goodput / (partitions.partitions ?? 1) / one.goodput).toBeGreaterThanOrEqual(0.95);
    },
  );

  it('[15.5] follows run times that grow to 1.4 times', async () => {
    const { share } = await loadOf(drifting, { load: 2 }).play();

    expect(share).toBeGreaterThanOrEqual(0.99);
  });

  it('[15.5] is kept again two seconds after run times have doubled', async () => {
    const { share } = await loadOf(doubled, { load: 1.5, from: 6000, until: 11_000 }).play();

    expect(share).toBeGreaterThanOrEqual(0.99);
  });

  it('[15.5] uses run times that have halved', async () => {
    const before = await loadOf(middle, { load: 3 }).play();

    const { share, goodput } = await loadOf(halved, {
      load: 3,
      from: 6000,
      until: 11_000,
    }).play();

    expect(share).toBeGreaterThanOrEqual(0.99);
    expect(goodput / before.goodput).toBeGreaterThan(1.7);
  });

  it('[15.5] loses little to pauses of the machine: two runs of a thousand take five times as long', async () => {
    const pause = { share: 0.002, factor: 5 };

    const paused = await loadOf(middle, { load: 1.5, pause, until: 17_000 }).play();

    const { goodput } = await loadOf(middle, { load: 1.5 }).play();
    expect(paused.share).toBeGreaterThanOrEqual(0.98);
    expect(paused.goodput / goodput).toBeGreaterThanOrEqual(0.9);
  });

  it('[15.5] finds the size for a rush after batches of one to three rows alone', async () => {
    const capacity = 32 / middle(32);
    const rate = (at: number): number => capacity * (at < 6000 ? 0.02 : 2);

    const { share, goodput, records } = await loadOf(middle, {
      load: 2,
      rate,
      from: 6000,
      until: 11_000,
    }).play();

    const steady = await loadOf(middle, { load: 2 }).play();
    expect(share).toBeGreaterThanOrEqual(0.97);
    expect(goodput / steady.goodput).toBeGreaterThanOrEqual(0.95);
    // Before batch times are believed, a batch takes all rows that wait.
    const believed = records.slice(10);
    let largest = Math.max(...records.slice(0, 10).map(({ rows }) => rows));
    for (const { rows, batchSize } of believed) {
      expect(batchSize).toBeLessThanOrEqual(Math.max(1, 2 * largest));
      largest = Math.max(largest, rows);
    }
  });

  it('[15.3] settles on a size within 20 batches', async () => {
    const { records } = await loadOf(middle, { load: 2, from: 0, until: 4000 }).play();

    const last = records.at(-1)!.batchSize;
    const settled = records.slice(20).map(({ batchSize }) => batchSize / last);
    expect(Math.min(...settled)).toBeGreaterThan(0.6);
    expect(Math.max(...settled)).toBeLessThan(1.25);
  });

  it('[15.7] A timeout of one to two batches is kept for most of the calls that are admitted, at any load', async () => {
    const shares: number[] = [];
    for (const line of Object.values(lines)) {
      for (const load of [0.5, 1, 1.5, 3]) {
        const options = { load, hasDeadlines: true, limits: { batchSize: 32, batchTimeout: 0 } };
        const { share } = await loadOf(line, options).play();
        shares.push(share);
      }
    }

    expect(Math.min(...shares)).toBeGreaterThan(0.85);
  });
});
