import { createServing } from 'nestjs-serving';
import { Thread } from '../contenders/thread.js';
import { typicalLatency } from '../harness/latency.js';
import { type Aim, compare, type Measurement } from '../harness/measurement.js';
import type { Plan } from '../harness/plan.js';
import { interleave } from '../harness/rounds.js';
import { digits } from '../models/digits.js';
import { mlp } from '../models/mlp.js';
import { type BenchmarkModel, session } from '../models/model.js';
import { randomRows } from '../models/random.js';

/** P3: what a lone caller pays for a serving that nobody else uses. */
export async function loneCall(plan: Plan): Promise<Measurement[]> {
  return [...(await loneCallOf(digits, plan)), ...(await loneCallOf(mlp, plan))];
}

async function loneCallOf(model: BenchmarkModel, plan: Plan): Promise<Measurement[]> {
  const thread = await Thread.start(model);
  const serving = createServing({
    name: model.name,
    model: { file: model.path, session },
    batchTimeout: 0,
  });
  await serving.start();

  const row = randomRows(1, model.rowShape);
  const measure = async (title: string, aim: Aim, pause: number): Promise<Measurement> => {
    const latency = (call: () => Promise<unknown>) => (): Promise<number> =>
      typicalLatency(plan.seconds / 2, call, pause);
    const sides = await interleave(plan.rounds, {
      serving: latency(() => serving.batchedRun(row)),
      'raw thread': latency(() => thread.run(row.data.slice())),
    });
    return compare({ figure: 'P3', title, aim, by: 'difference', sides, sideUnit: 'ms' });
  };
  const title = `p50 of a lone call, ${model.name}`;
  const measurements = [
    await measure(title, { atMost: 0.05 }, 0),
    await measure(`${title}, 2 ms apart`, { atMost: 0.12 }, 2),
  ];
  await Promise.all([serving.close(), thread.close()]);
  return measurements;
}
