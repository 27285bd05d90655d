import { setTimeout } from 'node:timers/promises';
import { createServing, type LocalServing } from 'nestjs-serving';
import type { Prompt } from '../contenders/decoder.js';
import { compare, type Measurement } from '../harness/measurement.js';
import type { Plan } from '../harness/plan.js';
import { openTrial, type Trial } from '../harness/trial.js';
import { interleave } from '../harness/rounds.js';

const places = 8;
const promptTokens = 30;
const meanTokens = 60;
const mostTokens = 400;
/** The spread of the lengths of answers, as the sigma of a log-normal distribution; and the aims. */
const spreads = [
  { sigma: 1, aim: 1.7 },
  { sigma: 1.3, aim: 2 },
];
/** Arrivals, as a share of the capacity of static batches. */
const load = 0.7;

/** P18: a token loop whose rows join and leave at each step, against batches that stay as they are. */
export async function sequences(plan: Plan): Promise<Measurement[]> {
  const [rounds, seconds] = [Math.ceil(plan.rounds / 3), plan.seconds * 12];
  const measurements: Measurement[] = [];
  let capacity = 0;
  for (const { sigma, aim } of spreads) {
    const rates = await interleave(rounds, {
      sequence: () => withServing('sequence', (each) => tokensPerSecond(each, sigma, seconds)),
      'static batches': () =>
        withServing('static', (each) => tokensPerSecond(each, sigma, seconds)),
    });
    const title = `tokens at saturation, lengths of sigma ${sigma}`;
    const sideUnit = 'tokens/s';
    measurements.push(
      compare({ figure: 'P18', title, aim: { atLeast: aim }, by: 'ratio', sides: rates, sideUnit }),
    );
    capacity ||= Math.max(...rates['static batches']);
  }
  const rate = (load * capacity) / meanTokens;
  const trials = await interleave(rounds, {
    sequence: () => withServing('sequence', (each) => firstTokens(each, rate, seconds)),
    'static batches': () => withServing('static', (each) => firstTokens(each, rate, seconds)),
  });
  return [...measurements, firstToken('p50', 1 / 4, trials), firstToken('p99', 1 / 2, trials)];
}

function firstToken(
  which: 'p50' | 'p99',
  aim: number,
  trials: Record<string, readonly Trial[]>,
): Measurement {
  return compare({
    figure: 'P18',
    title: `${which} to the first token, ${load} of the static capacity`,
    aim: { atMost: aim },
    by: 'ratio',
    sides: Object.fromEntries(
      Object.entries(trials).map(([side, each]) => [side, each.map((trial) => trial[which])]),
    ),
    sideUnit: 'ms',
  });
}

async function withServing<Value>(
  kind: 'sequence' | 'static',
  measure: (serving: LocalServing<unknown, number>) => Promise<Value>,
): Promise<Value> {
  const serving = createServing({
    name: kind,
    model: {
      useFile: new URL('../contenders/decoder.js', import.meta.url),
      ...(kind === 'sequence' && { sequence: {} }),
    },
    partitions: [{ kind }],
    batchSize: places,
  }) as LocalServing<unknown, number>;
  await serving.start();
  const value = await measure(serving);
  await serving.close();
  return value;
}

/** While more prompts wait than there are places, from the time when that is so for a while. */
async function tokensPerSecond(
  serving: LocalServing,
  sigma: number,
  seconds: number,
): Promise<number> {
  const prompts = promptsOf(sigma);
  const end = new AbortController();
  let tokens = 0;
  const callers = Array.from({ length: 4 * places }, async () => {
    while (!end.signal.aborted) {
      for await (const _ of serving.stream(prompts.next().value)) {
        tokens++;
        if (end.signal.aborted) {
          break;
        }
      }
    }
  });
  await setTimeout(seconds * 250);
  const [before, start] = [tokens, performance.now()];
  await setTimeout(seconds * 1000);
  const rate = ((tokens - before) / (performance.now() - start)) * 1000;
  end.abort();
  await Promise.all(callers);
  return rate;
}

/** From the arrival of a prompt to its first token. The rest is read, too. */
async function firstTokens(serving: LocalServing, rate: number, seconds: number): Promise<Trial> {
  const prompts = promptsOf(spreads[0]!.sigma);
  const rests: Promise<void>[] = [];
  const trial = await openTrial({ rate, seconds, patience: 1000 }, async () => {
    const tokens = serving.stream(prompts.next().value)[Symbol.asyncIterator]();
    await tokens.next();
    rests.push(readOut(tokens));
  });
  await Promise.all(rests);
  return trial;
}

async function readOut(tokens: AsyncIterator<unknown>): Promise<void> {
  while (!(await tokens.next()).done);
}

/** The same prompts on every side and in every round. */
function* promptsOf(sigma: number): Generator<Prompt, never> {
  const random = seeded();
  const mu = Math.log(meanTokens) - sigma ** 2 / 2;
  for (;;) {
    const normal = Math.sqrt(-2 * Math.log(1 - random())) * Math.cos(2 * Math.PI * random());
    const answer = Math.max(1, Math.min(mostTokens, Math.round(Math.exp(mu + sigma * normal))));
    yield { tokens: promptTokens, answer };
  }
}

/** A linear congruential generator: numbers from 0 up to 1. */
function seeded(): () => number {
  let state = 1;
  return () => (state = (Math.imul(state, 1_664_525) + 1_013_904_223) >>> 0) / 2 ** 32;
}
