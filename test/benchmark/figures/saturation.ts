import { createServing } from 'nestjs-serving';
import { Thread } from '../contenders/thread.js';
import { rowsPerSecond } from '../harness/callers.js';
import { compare, type Measurement } from '../harness/measurement.js';
import type { Plan } from '../harness/plan.js';
import { interleave } from '../harness/rounds.js';
import { digits } from '../models/digits.js';
import { encoder } from '../models/encoder.js';
import { mlp } from '../models/mlp.js';
import { batchSize, type BenchmarkModel, session } from '../models/model.js';
import { randomRows } from '../models/random.js';

/** P1: what is left of the model's own speed when many callers share it. */
export async function saturation(plan: Plan): Promise<Measurement[]> {
  return [
    await saturate(mlp, 1, plan),
    await saturate(encoder, 1, plan),
    await saturate(digits, 1, plan),
    await saturate(digits, 8, plan),
  ];
}

async function saturate(
  { name, path, rowShape }: BenchmarkModel,
  rowsPerCall: number,
  plan: Plan,
): Promise<Measurement> {
  const thread = await Thread.start({ name, path, rowShape });
  const serving = createServing({ name, model: { file: path, session }, batchSize });
  await serving.start();

  const runs = await runsIn(plan.seconds, thread);
  const input = randomRows(rowsPerCall, rowShape);
  const load = {
    callers: (4 * batchSize) / rowsPerCall,
    rowsPerCall,
    rows: runs * batchSize,
    warmup: 2 * batchSize,
  };
  const sides = await interleave(plan.rounds, {
    serving: () => rowsPerSecond(load, () => serving.batchedRun(input)),
    'raw thread': async () => load.rows / (await thread.loop(batchSize, runs)),
  });
  await Promise.all([serving.close(), thread.close()]);

  const title = `saturated, ${rowsPerCall === 1 ? 'a row' : `${rowsPerCall} rows`} per call, ${name}`;
  return compare({
    figure: 'P1',
    title,
    aim: { atLeast: 0.98 },
    by: 'ratio',
    sides,
    sideUnit: 'rows/s',
  });
}

async function runsIn(seconds: number, thread: Thread): Promise<number> {
  await thread.loop(batchSize, 2);
  const perRun = (await thread.loop(batchSize, 3)) / 3;
  return Math.ceil(seconds / perRun);
}
