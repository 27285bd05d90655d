import { type Aim, compare, type Measurement } from '../harness/measurement.js';
import type { Plan } from '../harness/plan.js';
import { mapValues } from '../harness/map-values.js';
import { interleave } from '../harness/rounds.js';
import { summarize } from '../harness/statistics.js';
import { Contender, startGenerator, type Trial } from '../http/contender.js';
import type { LoadRequest } from '../http/load.js';
import { mlpPost } from '../http/posts.js';
import type { Variant } from '../http/server.js';

type Trials = Record<Extract<Variant, 'batched' | 'run per request' | 'piscina'>, Trial[]>;

/** Of a capacity that was just measured: busy, and far enough from the edge to be steady. */
const share = 0.7;

/**
 * P4 and P5: three servers, which differ only in how a request reaches the model, under the same
 * loads.
 */
export async function endpoint(plan: Plan): Promise<Measurement[]> {
  // Longer than elsewhere, and fewer: the queues of a server take a while to build up.
  const [rounds, seconds] = [Math.ceil(plan.rounds / 3), plan.seconds * 2.5];
  const generator = await startGenerator();
  const contenders = {
    batched: await Contender.start('batched', mlpPost),
    'run per request': await Contender.start('run per request', mlpPost),
    piscina: await Contender.start('piscina', mlpPost),
  };
  const under = (load: LoadRequest['load']): Promise<Trials> =>
    interleave(
      rounds,
      mapValues(contenders, (contender) => () => contender.under(load, generator)),
    );

  await checkReplies(Object.values(contenders));
  const { idle } = await interleave(rounds, { idle: () => contenders.batched.idleDelay(seconds) });
  const few = await under({ kind: 'closed', connections: 64, seconds });
  const many = await under({ kind: 'closed', connections: 256, seconds });
  const busy = Math.round(share * capacityOf(many.batched));
  const calm = Math.round(share * capacityOf(many['run per request']));
  const whenBusy = await under({ kind: 'open', connections: 256, rate: busy, seconds });
  const whenCalm = await under({ kind: 'open', connections: 256, rate: calm, seconds });
  await Promise.all([...Object.values(contenders), generator].map((each) => each.close()));

  return [
    rate('64 connections', few),
    rate('256 connections', many),
    latency('64 connections', few, { atMost: 0.25 }),
    latency('256 connections', many, { atMost: 0.25 }),
    latency(`arrivals at ${share} of the batched capacity`, whenBusy, { atMost: 0.25 }),
    latency(`arrivals at ${share} of the capacity without`, whenCalm),
    delay('64 connections', few, idle),
    delay('256 connections', many, idle),
    delay(`arrivals at ${share} of the capacity`, whenBusy, idle),
  ];
}

/** Speed is worth nothing where the replies differ. */
async function checkReplies(contenders: readonly Contender[]): Promise<void> {
  const [expected, ...replies] = await Promise.all(
    contenders.map(async (contender) => new Float32Array(await contender.reply())),
  );
  for (const reply of replies) {
    const alike =
      reply.length > 0 &&
      reply.every((value, index) => Math.abs(value - (expected?.[index] ?? NaN)) < 1e-4);
    if (!alike) {
      throw new Error('the servers do not answer alike');
    }
  }
}

function capacityOf(trials: readonly Trial[]): number {
  return summarize(trials.map((trial) => trial.rate)).median;
}

function rate(title: string, trials: Trials): Measurement {
  const sides = mapValues(trials, (each) => each.map((trial) => trial.rate));
  return compare({
    figure: 'P4',
    title: `rate, ${title}`,
    aim: { atLeast: 4 },
    by: 'ratio',
    sides,
    sideUnit: 'req/s',
  });
}

function latency(title: string, trials: Trials, aim?: Aim): Measurement {
  const sides = mapValues(trials, (each) => each.map((trial) => trial.p99));
  return compare({ figure: 'P4', title: `p99, ${title}`, aim, by: 'ratio', sides, sideUnit: 'ms' });
}

function delay(title: string, trials: Trials, idle: readonly number[]): Measurement {
  const { batched, ...others } = mapValues(trials, (each) => each.map((trial) => trial.delay));
  const sides = { batched, idle, ...others };
  return compare({
    figure: 'P5',
    title: `delay p99, ${title}`,
    aim: { atMost: 3 },
    by: 'difference',
    sides,
    sideUnit: 'ms',
  });
}
