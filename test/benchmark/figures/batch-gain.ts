import { Thread } from '../contenders/thread.js';
import { compare, type Measurement } from '../harness/measurement.js';
import type { Plan } from '../harness/plan.js';
import { interleave } from '../harness/rounds.js';
import { convolution } from '../models/convolution.js';
import { digits } from '../models/digits.js';
import { encoder } from '../models/encoder.js';
import { mlp } from '../models/mlp.js';
import { batchSize, type BenchmarkModel } from '../models/model.js';

/**
 * P6: what a model itself gains from batches, without any serving. Where that is nothing, batching
 * calls gains nothing.
 */
export async function batchGain(plan: Plan): Promise<Measurement[]> {
  return [
    await gainOf(mlp, plan),
    await gainOf(encoder, plan),
    await gainOf(digits, plan),
    await gainOf(convolution, plan),
  ];
}

async function gainOf(model: BenchmarkModel, { rounds, seconds }: Plan): Promise<Measurement> {
  const thread = await Thread.start(model);
  const perRow = (await thread.loop(1, batchSize)) / batchSize;
  const batches = Math.ceil(seconds / 2 / perRow / batchSize);
  const rows = batches * batchSize;
  const sides = await interleave(rounds, {
    [`batches of ${batchSize}`]: async () => rows / (await thread.loop(batchSize, batches)),
    'single rows': async () => rows / (await thread.loop(1, rows)),
  });
  await thread.close();

  return compare({
    figure: 'P6',
    title: `gain of batches, ${model.name}`,
    by: 'ratio',
    sides,
    sideUnit: 'rows/s',
  });
}
