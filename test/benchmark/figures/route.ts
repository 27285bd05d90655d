import { type Aim, compare, type Measurement } from '../harness/measurement.js';
import { mapValues } from '../harness/map-values.js';
import type { Plan } from '../harness/plan.js';
import { interleave } from '../harness/rounds.js';
import { Contender, startGenerator, warmUp } from '../http/contender.js';
import { digitsPost } from '../http/posts.js';
import type { Variant } from '../http/server.js';

interface Way {
  readonly variant: Variant;
  readonly title: string;
  readonly aim: Aim;
}

const ways: readonly Way[] = [
  { variant: 'digits: call', title: 'a plain call', aim: { atLeast: 0.85 } },
  { variant: 'digits: signal', title: "with the request's signal", aim: { atLeast: 0.8 } },
  { variant: 'digits: batched', title: '@Batched', aim: { atLeast: 0.8 } },
];

/**
 * P13: what is left of the requests that Nest answers without a model when a route calls one that
 * is nearly free, and what a lone client waits.
 */
export async function route(plan: Plan): Promise<Measurement[]> {
  const generator = await startGenerator();
  const bare = await start('digits: bare');
  const perRequest = await start('digits: run per request');
  const called = await Promise.all(ways.map(({ variant }) => start(variant)));
  const contenders = Object.fromEntries([
    ['bare', bare],
    ['run per request', perRequest],
    ...called.map((contender, index) => [ways[index]!.variant, contender] as const),
  ]);
  await checkReplies([perRequest, ...called]);
  await warmUp(Object.values(contenders), generator);

  const under = (connections: number, among: Record<string, Contender>) =>
    interleave(
      plan.rounds,
      mapValues(
        among,
        (contender) => () =>
          contender.under({ kind: 'closed', connections, seconds: plan.seconds }, generator),
      ),
    );
  const many = mapValues(await under(64, contenders), (trials) =>
    trials.map(({ perCpuSecond }) => perCpuSecond),
  );
  const alone = mapValues(
    await under(1, { 'a plain call': called[0]!, 'run per request': perRequest }),
    (trials) => trials.map(({ p50 }) => p50),
  );
  await Promise.all([...Object.values(contenders), generator].map((each) => each.close()));

  return [
    ...ways.map(({ variant, title, aim }) =>
      compare({
        figure: 'P13',
        title: `a route with a call, ${title}`,
        aim,
        by: 'ratio',
        sides: {
          calls: many[variant]!,
          bare: many['bare']!,
          'run per request': many['run per request']!,
        },
        sideUnit: 'req per CPU s',
      }),
    ),
    compare({
      figure: 'P13',
      title: 'p50 of one client, a plain call',
      aim: { atMost: 0.3 },
      by: 'difference',
      sides: alone,
      sideUnit: 'ms',
    }),
  ];
}

function start(variant: Variant): Promise<Contender> {
  return Contender.start(variant, digitsPost);
}

async function checkReplies(contenders: readonly Contender[]): Promise<void> {
  const replies = await Promise.all(
    contenders.map(async (contender) => Buffer.from(await contender.reply()).toString()),
  );
  if (new Set(replies).size !== 1) {
    throw new Error(`the servers do not answer alike: ${replies.join(', ')}`);
  }
}
