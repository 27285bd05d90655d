import DataLoader from 'dataloader';
import { createServing } from 'nestjs-serving';
import { Tensor } from 'onnxruntime-common';
import { rowsPerSecond } from '../harness/callers.js';
import { compare, type Measurement } from '../harness/measurement.js';
import type { Plan } from '../harness/plan.js';
import { interleave } from '../harness/rounds.js';
import { batchSize } from '../models/model.js';

const many = 100_000;
const few = 1_000;

/** P2: what it costs to collect rows and hand replies back, with no model behind it. */
export async function engine(plan: Plan): Promise<Measurement[]> {
  return [await againstDataloader(plan), await asTheQueueGrows(plan), await asTheShapesMultiply(plan)];
}

async function againstDataloader({ rounds, seconds }: Plan): Promise<Measurement> {
  const serving = createServing({ name: 'identity', useFactory: () => identity<number[]>, batchSize });
  await serving.start();
  const loader = newDataloader();

  const load = { callers: 256, rowsPerCall: 1, rows: Math.ceil(seconds * 200_000), warmup: 320 * batchSize };
  const sides = await interleave(rounds, {
    serving: () => rowsPerSecond(load, () => serving.batchedRun(1)),
    dataloader: () => rowsPerSecond(load, () => loader.load(1)),
  });
  await serving.close();

  const title = `engine alone, ${load.callers} callers`;
  return compare({ figure: 'P2', title, aim: { atLeast: 1 }, by: 'ratio', sides, sideUnit: 'rows/s' });
}

async function asTheQueueGrows({ rounds }: Plan): Promise<Measurement> {
  const serving = createServing({ name: 'identity', useFactory: () => identity<number[]>, batchSize, maxQueue: many });
  await serving.start();
  const loader = newDataloader();
  const sides = await interleave(rounds, {
    [`${many} waiting`]: () => costPerRow(many, many, () => serving.batchedRun(1)),
    [`${few} waiting`]: () => costPerRow(many, few, () => serving.batchedRun(1)),
    [`dataloader, ${many}`]: () => costPerRow(many, many, () => loader.load(1)),
    [`dataloader, ${few}`]: () => costPerRow(many, few, () => loader.load(1)),
  });
  await serving.close();

  return compare({ figure: 'P2', title: 'cost of a row as the queue grows', by: 'ratio', sides, sideUnit: 'µs' });
}

/** Rows of different lengths cannot share a batch; the rows of one length are as long as the others are on average. */
async function asTheShapesMultiply({ rounds }: Plan): Promise<Measurement> {
  const serving = createServing({ name: 'tensors', useFactory: () => identity<Tensor>, batchSize, maxQueue: many });
  await serving.start();
  const shapes = Array.from({ length: 1000 }, (_, index) => tensorRow(index + 1));
  const average = tensorRow(500);
  const rows = shapes.length * batchSize;
  const sides = await interleave(rounds, {
    [`${shapes.length} shapes`]: () => costPerRow(rows, rows, (index) => serving.batchedRun(shapes[index % shapes.length])),
    '1 shape': () => costPerRow(rows, rows, () => serving.batchedRun(average)),
  });
  await serving.close();

  return compare({
    figure: 'P2',
    title: 'cost of a tensor row as shapes multiply',
    by: 'ratio',
    sides,
    sideUnit: 'µs',
  });
}

function identity<T>(rows: T): T {
  return rows;
}

function tensorRow(length: number): Tensor {
  return new Tensor('float32', new Float32Array(length), [1, length]);
}

function newDataloader(): DataLoader<number, number> {
  return new DataLoader(async (rows) => rows, { cache: false, maxBatchSize: batchSize });
}

/** Microseconds a row, when `waiting` rows are always put into the queue at once. */
async function costPerRow(rows: number, waiting: number, call: (index: number) => Promise<unknown>): Promise<number> {
  const start = performance.now();
  for (let done = 0; done < rows; done += waiting) {
    await Promise.all(Array.from({ length: waiting }, (_, index) => call(index)));
  }
  return ((performance.now() - start) / rows) * 1000;
}
