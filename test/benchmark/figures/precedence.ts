import { setTimeout } from 'node:timers/promises';
import type { LocalServing } from 'nestjs-serving';
import {
  type Capacity,
  capacityOf,
  encoderServing,
  row,
  timedCall,
} from '../contenders/encoder-serving.js';
import { compare, type Measurement } from '../harness/measurement.js';
import type { Plan } from '../harness/plan.js';
import { quantile } from '../harness/statistics.js';
import { openTrial, type Trial } from '../harness/trial.js';

/** Arrivals, as a multiple of the capacity: of calls of priority 1, of all others. */
const urgentLoad = 1;
const otherLoad = 9;
const times = urgentLoad + otherLoad;

interface Round {
  readonly capacity: Capacity;
  readonly urgent: Trial;
  readonly others: Trial;
  readonly alone: LoneCaller;
  /** Beside the flood of another tenant, and of his own. */
  readonly apart: LoneCaller;
  readonly within: LoneCaller;
}

/** One who calls, waits for the answer, and calls again after the time of a batch. */
interface LoneCaller {
  /** p99 of the milliseconds until an answer. */
  readonly p99: number;
  /** The share of his calls that were answered. */
  readonly answered: number;
}

/** P9: who is answered when ten times as many calls come as can be. */
export async function precedence(plan: Plan): Promise<Measurement[]> {
  const [rounds, seconds] = [Math.ceil(plan.rounds / 3), plan.seconds * 5];
  const serving = await encoderServing();
  const measured: Round[] = [];
  for (let round = 0; round <= rounds; round++) {
    const capacity = await capacityOf(serving, seconds);
    const { rate, patience } = capacity;
    const flood = (load: number, options: object): Promise<Trial> =>
      openTrial({ rate: load * rate, seconds, patience }, timedCall(serving, capacity, options));
    const [urgent, others] = await Promise.all([
      flood(urgentLoad, { priority: 1 }),
      flood(otherLoad, {}),
    ]);
    const beside = async (tenant: string): Promise<LoneCaller> => {
      const flooding = flood(times, { tenant: 'flood' });
      await setTimeout(patience);
      const caller = await loneCaller(serving, capacity, seconds, tenant);
      await flooding;
      return caller;
    };
    const alone = await loneCaller(serving, capacity, seconds, 'lone');
    measured.push({
      capacity,
      urgent,
      others,
      alone,
      apart: await beside('lone'),
      within: await beside('flood'),
    });
  }
  await serving.close();

  // The first has warmed up.
  return report(measured.slice(1));
}

async function loneCaller(
  serving: LocalServing,
  { batchTime, patience }: Capacity,
  seconds: number,
  tenant: string,
): Promise<LoneCaller> {
  const latencies: number[] = [];
  let calls = 0;
  for (
    const end = performance.now() + seconds * 1000;
    performance.now() < end;
    await setTimeout(batchTime)
  ) {
    const start = performance.now();
    calls++;
    await serving.batchedRun(row, { tenant, timeout: patience }).then(
      () => latencies.push(performance.now() - start),
      () => undefined,
    );
  }
  return {
    p99: quantile(Float64Array.from(latencies).toSorted(), 0.99),
    answered: latencies.length / calls,
  };
}

function report(rounds: readonly Round[]): Measurement[] {
  const good = (kind: 'urgent' | 'others'): number[] =>
    rounds.map((round) => round[kind].good / round[kind].offered);
  const caller = (value: keyof LoneCaller) => (kind: 'alone' | 'apart' | 'within') =>
    rounds.map((round) => round[kind][value]);
  const [p99, answered] = [caller('p99'), caller('answered')];
  return [
    compare({
      figure: 'P9',
      title: `answered of the tenth of calls that is urgent, ${times} times the capacity`,
      aim: { atLeast: 0.95 },
      by: 'ratio',
      sides: {
        urgent: good('urgent'),
        // At the capacity itself some cannot be.
        possible: rounds.map(({ capacity, urgent }) => Math.min(1, capacity.rate / urgent.offered)),
        others: good('others'),
      },
      sideUnit: 'of the calls',
    }),
    compare({
      figure: 'P9',
      title: `p99 of a lone caller beside a flood of ${times} times the capacity`,
      aim: { atMost: 4 },
      by: 'ratio',
      sides: {
        'a tenant of his own': p99('apart'),
        'a batch': rounds.map(({ capacity }) => capacity.batchTime),
        alone: p99('alone'),
        'the tenant of the flood': p99('within'),
      },
      sideUnit: 'ms',
    }),
    compare({
      figure: 'P9',
      title: 'his calls that are answered',
      aim: { atLeast: 0.99 },
      by: 'ratio',
      sides: {
        'a tenant of his own': answered('apart'),
        alone: answered('alone'),
        'the tenant of the flood': answered('within'),
      },
      sideUnit: 'of the calls',
    }),
  ];
}
