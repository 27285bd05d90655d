import {
  type Capacity,
  capacityOf,
  encoderServing,
  patienceInBatches,
  row,
  timedCall,
} from '../contenders/encoder-serving.js';
import { Session } from '../contenders/session.js';
import { compare, type Measurement } from '../harness/measurement.js';
import type { Plan } from '../harness/plan.js';
import { openTrial, type Trial } from '../harness/trial.js';
import { encoder } from '../models/encoder.js';
import { batchSize } from '../models/model.js';

/** Arrivals, as a multiple of the capacity. */
const loads = [0.5, 1, 2, 10];
const most = 10;

/** What one round has measured. */
interface Round {
  readonly capacity: Capacity;
  /** Calls with a timeout, at each of the loads. */
  readonly timed: ReadonlyMap<number, Trial>;
  /**
   * At the highest load: with a timeout and a queue of four batches; with a queue as long as
   * callers wait, and no timeout; without a serving.
   */
  readonly shortQueue: Trial;
  readonly untimed: Trial;
  readonly perRequest: Trial;
}

/** P8: what a serving still does when more calls come than it can answer, and do not care. */
export async function overload(plan: Plan): Promise<Measurement[]> {
  const [rounds, seconds] = [Math.ceil(plan.rounds / 3), plan.seconds * 5];
  const serving = await encoderServing();
  const shortQueue = await encoderServing({ maxRows: 4 * batchSize });
  const longQueue = await encoderServing({ maxRows: patienceInBatches * batchSize });
  const perRequest = await Session.start(encoder, 256);

  const measured: Round[] = [];
  for (let round = 0; round <= rounds; round++) {
    const capacity = await capacityOf(serving, seconds);
    const under = (times: number, call: (arrival: number) => Promise<unknown>): Promise<Trial> =>
      openTrial({ rate: times * capacity.rate, seconds, patience: capacity.patience }, call);
    const timed = new Map<number, Trial>();
    for (const times of loads) {
      timed.set(times, await under(times, timedCall(serving, capacity)));
    }
    measured.push({
      capacity,
      timed,
      shortQueue: await under(most, timedCall(shortQueue, capacity)),
      untimed: await under(most, () => longQueue.batchedRun(row)),
      perRequest: await under(most, (arrival) => perRequest.run(row, arrival + capacity.patience)),
    });
  }
  await Promise.all([serving, shortQueue, longQueue, perRequest].map((each) => each.close()));

  // The first has warmed up.
  return report(measured.slice(1));
}

function report(rounds: readonly Round[]): Measurement[] {
  const baselines = (value: (trial: Trial) => number): Record<string, number[]> => ({
    'queue of 4 batches': rounds.map((round) => value(round.shortQueue)),
    [`queue of ${patienceInBatches}, no timeout`]: rounds.map((round) => value(round.untimed)),
    'run per request': rounds.map((round) => value(round.perRequest)),
  });
  const atMost = (value: (trial: Trial) => number): number[] =>
    rounds.map(({ timed }) => value(timed.get(most)!));
  return [
    ...loads.map((times) =>
      goodput(times, rounds, times === most ? baselines((trial) => trial.good) : {}),
    ),
    ...loads.map((times) =>
      latency(times, rounds, times === most ? baselines((trial) => trial.p99) : {}),
    ),
    refusals(rounds),
    compare({
      figure: 'P8',
      title: `p99 until a refusal, ${most} times the capacity`,
      better: 'lower',
      by: 'ratio',
      sides: {
        refusal: atMost((trial) => trial.refusal),
        'a batch': rounds.map(({ capacity }) => capacity.batchTime),
      },
      sideUnit: 'ms',
    }),
    compare({
      figure: 'P8',
      title: `event-loop delay p99, ${most} times the capacity`,
      better: 'lower',
      by: 'difference',
      sides: {
        'with a timeout': atMost((trial) => trial.delay),
        [`${loads[0]} times`]: rounds.map(({ timed }) => timed.get(loads[0]!)!.delay),
        ...baselines((trial) => trial.delay),
      },
      sideUnit: 'ms',
    }),
  ];
}

/** Calls that were answered in time, of as many as could have been. */
function goodput(
  times: number,
  rounds: readonly Round[],
  baselines: Record<string, number[]>,
): Measurement {
  const trials = rounds.map(({ timed }) => timed.get(times)!);
  const sides = {
    'in time': trials.map(({ good }) => good),
    possible: trials.map(({ offered }, round) => Math.min(offered, rounds[round]!.capacity.rate)),
    ...baselines,
  };
  const title = `goodput, ${times} times the capacity`;
  return compare({
    figure: 'P8',
    title,
    aim: { atLeast: 0.95 },
    by: 'ratio',
    sides,
    sideUnit: 'req/s',
  });
}

function latency(
  times: number,
  rounds: readonly Round[],
  baselines: Record<string, number[]>,
): Measurement {
  const trials = rounds.map(({ timed }) => timed.get(times)!);
  const sides = {
    answered: trials.map(({ p99 }) => p99),
    timeout: rounds.map(({ capacity }) => capacity.patience),
    'a batch': rounds.map(({ capacity }) => capacity.batchTime),
    p50: trials.map(({ p50 }) => p50),
    ...baselines,
  };
  const title = `p99 of the answered, ${times} times the capacity`;
  return compare({ figure: 'P8', title, aim: { atMost: 1 }, by: 'ratio', sides, sideUnit: 'ms' });
}

function refusals(rounds: readonly Round[]): Measurement {
  const trials = rounds.map(({ timed }) => timed.get(most)!);
  const codes = [...new Set(trials.flatMap(({ failed }) => [...failed.keys()]))];
  const sides = {
    failed: trials.map(({ failed }) => [...failed.values()].reduce((sum, count) => sum + count, 0)),
    offered: trials.map(({ offered }) => offered),
    ...Object.fromEntries(
      codes.map((code) => [code, trials.map(({ failed }) => failed.get(code) ?? 0)]),
    ),
  };
  return compare({
    figure: 'P8',
    title: `failed, ${most} times the capacity`,
    by: 'ratio',
    sides,
    sideUnit: 'req/s',
  });
}
