import { compare, type Measurement } from '../harness/measurement.js';
import { mapValues } from '../harness/map-values.js';
import type { Plan } from '../harness/plan.js';
import { interleave } from '../harness/rounds.js';
import { Contender, startGenerator, warmUp } from '../http/contender.js';
import { digitsPost } from '../http/posts.js';

/**
 * P12: what a route without a model pays for a serving in its application: one that is never
 * called, and one that has been called before.
 */
export async function neighbours({ rounds, seconds }: Plan): Promise<Measurement[]> {
  const generator = await startGenerator();
  const contenders = {
    uncalled: await Contender.start('digits: beside', digitsPost),
    called: await Contender.start('digits: beside', digitsPost),
    without: await Contender.start('digits: bare', digitsPost),
    'without, again': await Contender.start('digits: bare', digitsPost),
  };
  for (let call = 0; call < 100; call++) {
    await contenders.called.reply({ ...digitsPost, path: '/serving' });
  }

  const load = { kind: 'closed', connections: 64, seconds } as const;
  await warmUp(Object.values(contenders), generator);
  const trials = await interleave(
    rounds,
    mapValues(contenders, (contender) => () => contender.under(load, generator)),
  );
  await Promise.all([...Object.values(contenders), generator].map((each) => each.close()));

  const { uncalled, called, ...baselines } = mapValues(trials, (each) =>
    each.map(({ perCpuSecond }) => perCpuSecond),
  );
  const besides = (title: string, beside: number[]): Measurement =>
    compare({
      figure: 'P12',
      title: `another route, ${title}`,
      aim: { atLeast: 0.98 },
      by: 'ratio',
      sides: { beside, ...baselines },
      sideUnit: 'req per CPU s',
    });
  return [
    besides('a serving that is never called', uncalled),
    besides('a serving that has been called', called),
  ];
}
