import { setTimeout as delay } from 'node:timers/promises';
import { compare, type Measurement } from '../harness/measurement.js';
import { mapValues } from '../harness/map-values.js';
import type { Plan } from '../harness/plan.js';
import { interleave } from '../harness/rounds.js';
import { Contender, startGenerator, warmUp } from '../http/contender.js';
import { digitsPost } from '../http/posts.js';

interface Poll {
  readonly second: number;
  readonly detail: { readonly batches: readonly { readonly number: number }[] };
}

/** Milliseconds after the last poll when the board counts as closed. */
const CLOSED_AFTER = 11_500;

/** P23: what is left of the calls of an application with a board, while it is closed and open. */
export async function board({ rounds, seconds }: Plan): Promise<Measurement[]> {
  const generator = await startGenerator();
  const [first, second] = [
    await Contender.start('digits: board', digitsPost),
    await Contender.start('digits: board', digitsPost),
  ];
  const baselines = {
    without: await Contender.start('digits: call', digitsPost),
    'without, again': await Contender.start('digits: call', digitsPost),
  };
  const all = [first, second, ...Object.values(baselines)];
  const under = async <Name extends string>(
    contenders: Record<Name, Contender>,
  ): Promise<Record<Name, number[]>> => {
    const load = { kind: 'closed', connections: 64, seconds } as const;
    const trials = await interleave(
      3 * rounds,
      mapValues(contenders, (contender) => () => contender.under(load, generator)),
    );
    return mapValues(trials, (each) => each.map(({ perCpuSecond }) => perCpuSecond));
  };

  await warmUp(all, generator);
  const beside = await under({ closed: first, ...baselines });
  // Two processes of one application differ by more than the board costs: each is open once.
  const open: number[] = [];
  const closed: number[] = [];
  for (const [shown, hidden] of [
    [first, second],
    [second, first],
  ] as const) {
    const watching = new AbortController();
    const watched = watch(shown, watching.signal);
    const sides = await under({ open: shown, closed: hidden });
    open.push(...sides.open);
    closed.push(...sides.closed);
    watching.abort();
    await watched;
    await delay(CLOSED_AFTER);
  }
  await Promise.all([...all, generator].map((each) => each.close()));

  const figure = { figure: 'P23', by: 'ratio', sideUnit: 'req per CPU s' } as const;
  return [
    compare({
      ...figure,
      title: 'calls with a closed board',
      better: 'higher',
      sides: beside,
    }),
    compare({
      ...figure,
      title: 'calls while the board is open',
      aim: { atLeast: 0.98 },
      sides: { open, closed },
    }),
  ];
}

/** Polls the board as its page does. */
async function watch(contender: Contender, signal: AbortSignal): Promise<void> {
  let since = -1;
  let batch = -1;
  while (!signal.aborted) {
    const query = `serving=digits&since=${since}&batch=${batch}`;
    const { second, detail } = (await contender.get(`/servings/api?${query}`)) as Poll;
    since = second - 1;
    batch = detail.batches.at(-1)?.number ?? batch;
    await delay(1000, undefined, { signal }).catch(() => {});
  }
}
