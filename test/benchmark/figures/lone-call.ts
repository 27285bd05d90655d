import { createServing } from 'nestjs-serving';
import { Thread } from '../contenders/thread.js';
import { typicalLatency } from '../harness/latency.js';
import { compare, type Measurement } from '../harness/measurement.js';
import type { Plan } from '../harness/plan.js';
import { interleave } from '../harness/rounds.js';
import { digits } from '../models/digits.js';
import { mlp } from '../models/mlp.js';
import { type BenchmarkModel, session } from '../models/model.js';
import { randomRows } from '../models/random.js';

/** P3: what a lone caller pays for a serving that nobody else uses. */
export async function loneCall(plan: Plan): Promise<Measurement[]> {
  return [await loneCallOf(digits, plan), await loneCallOf(mlp, plan)];
}

async function loneCallOf(model: BenchmarkModel, { rounds, seconds }: Plan): Promise<Measurement> {
  const thread = await Thread.start(model);
  const serving = createServing({
    name: model.name,
    model: { file: model.path, session },
    batchTimeout: 0,
  });
  await serving.start();

  const row = randomRows(1, model.rowShape);
  const sides = await interleave(rounds, {
    serving: () => typicalLatency(seconds / 2, () => serving.batchedRun(row)),
    'raw thread': () => typicalLatency(seconds / 2, () => thread.run(row.data.slice())),
  });
  await Promise.all([serving.close(), thread.close()]);

  const title = `p50 of a lone call, ${model.name}`;
  return compare({
    figure: 'P3',
    title,
    aim: { atMost: 0.15 },
    by: 'difference',
    sides,
    sideUnit: 'ms',
  });
}
