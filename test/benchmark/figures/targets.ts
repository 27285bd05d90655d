import { createServing, type LocalServing, type ServingOptions } from 'nestjs-serving';
import { type Capacity, capacityOf } from '../contenders/encoder-serving.js';
import { compare, type Measurement } from '../harness/measurement.js';
import type { Plan } from '../harness/plan.js';
import { summarize } from '../harness/statistics.js';
import { openTrial, type Trial } from '../harness/trial.js';
import { convolution } from '../models/convolution.js';
import { encoder } from '../models/encoder.js';
import { mlp } from '../models/mlp.js';
import { type BenchmarkModel, batchSize, session } from '../models/model.js';
import { randomRows } from '../models/random.js';

/** Arrivals, as a multiple of the capacity. */
const loads = [0.1, 0.5, 1, 3];

/** The fixed sizes that stand beside the target. */
const sizes = [8, 16, 32];

/** The target in the time of a full batch, and its least milliseconds. */
const targetInBatches = 3;
const leastTarget = 50;

/** What one round has measured at one load. */
interface Round {
  readonly target: Trial;
  readonly fixed: readonly Trial[];
}

/**
 * P21: a serving that is given a latency in place of a batch size, and the best of fixed sizes,
 * whose calls have that latency as their timeout.
 */
export async function targets(plan: Plan): Promise<Measurement[]> {
  return [
    ...(await targetsOf(mlp, plan)),
    ...(await targetsOf(encoder, plan)),
    ...(await targetsOf(convolution, plan)),
  ];
}

async function targetsOf(model: BenchmarkModel, plan: Plan): Promise<Measurement[]> {
  const [rounds, { seconds }] = [Math.ceil(plan.rounds / 4), plan];
  const row = randomRows(1, model.rowShape);
  const fixed = await start(model, {});
  const capacity = await capacityOf(fixed, seconds, row);
  const latencyTarget = Math.max(leastTarget, targetInBatches * capacity.batchTime);
  const aimed = await start(model, {
    batchSize: { rows: batchSize, latencyTarget },
    warmUp: [row],
  });

  const measured = new Map<number, Round[]>(loads.map((load) => [load, []]));
  for (let round = 0; round <= rounds; round++) {
    for (const load of loads) {
      const under = (call: (arrival: number) => Promise<unknown>): Promise<Trial> =>
        openTrial({ rate: load * capacity.rate, seconds, patience: latencyTarget }, call);
      const target = await under(() => aimed.batchedRun(row));
      const others: Trial[] = [];
      // The first round warms up, and the target learns how much run times vary.
      for (const size of round === 0 ? [] : sizes) {
        fixed.setBatchSize(size);
        others.push(
          await under((arrival) => {
            const timeout = Math.max(0, arrival + latencyTarget - performance.now());
            return fixed.batchedRun(row, { timeout });
          }),
        );
      }
      if (round > 0) {
        measured.get(load)!.push({ target, fixed: others });
      }
    }
  }
  await Promise.all([fixed.close(), aimed.close()]);
  return loads.flatMap((load) => report(model, load, capacity, latencyTarget, measured.get(load)!));
}

async function start(
  { name, path }: BenchmarkModel,
  options: Pick<ServingOptions, 'batchSize' | 'warmUp'>,
): Promise<LocalServing> {
  const serving = createServing({ name, model: { file: path, session }, batchSize, ...options });
  await serving.start();
  return serving;
}

function report(
  { name }: BenchmarkModel,
  load: number,
  { batchTime }: Capacity,
  latencyTarget: number,
  rounds: readonly Round[],
): Measurement[] {
  const all = (value: number): number[] => rounds.map(() => value);
  const bySize = sizes.map((_, index) => rounds.map(({ fixed }) => goodput(fixed[index]!)));
  // The best over all rounds: the best of each round would be picked by chance.
  const [best = []] = bySize.toSorted((a, b) => summarize(b).median - summarize(a).median);
  return [
    compare({
      figure: 'P21',
      title: `in time, ${load} times the capacity, ${name}`,
      aim: { atLeast: 0.99 },
      by: 'ratio',
      sides: {
        'in time': rounds.map(({ target }) => target.share),
        admitted: all(1),
        'p99, ms': rounds.map(({ target }) => target.p99),
        'target, ms': all(latencyTarget),
        'a batch, ms': all(batchTime),
        ...Object.fromEntries(
          sizes.map((size, index) => [
            `in time, batches of ${size}`,
            rounds.map(({ fixed }) => fixed[index]!.share),
          ]),
        ),
      },
      sideUnit: '',
    }),
    compare({
      figure: 'P21',
      title: `goodput, ${load} times the capacity, ${name}`,
      aim: { atLeast: 0.95 },
      by: 'ratio',
      sides: {
        'with a target': rounds.map(({ target }) => goodput(target)),
        'the best fixed size': best,
        ...Object.fromEntries(
          sizes.map((size, index) => [`batches of ${size}`, bySize[index]!] as const),
        ),
      },
      sideUnit: 'of the offered',
    }),
  ];
}

/** The part of the calls that were answered in time. */
function goodput({ offered, share, failed }: Trial): number {
  const refused = [...failed.values()].reduce((sum, calls) => sum + calls, 0);
  return (share * (offered - refused)) / offered;
}
