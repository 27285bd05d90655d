import DataLoader from 'dataloader';
import { createServing, Tensor } from 'nestjs-serving';
import { MinimalBatcher } from '../contenders/minimal-batcher.js';
import { Thread } from '../contenders/thread.js';
import { mainThreadTimePerRow } from '../harness/callers.js';
import { type Aim, compare, type Measurement } from '../harness/measurement.js';
import type { Plan } from '../harness/plan.js';
import { interleave } from '../harness/rounds.js';
import { digits } from '../models/digits.js';
import { batchSize, session } from '../models/model.js';
import { randomFloats, sizeOf } from '../models/weights.js';

interface Pair {
  readonly title: string;
  readonly aim: Aim;
  readonly rowsPerSecond: number;
  readonly serving: () => Promise<unknown>;
  readonly baseline: () => Promise<unknown>;
}

const size = sizeOf(digits.rowShape);
const row = randomFloats(size, 1);
const tensor = (): Tensor => new Tensor('float32', row, [1, size]);

/** P14: for how long a call keeps the event loop from everything else, with 64 callers. */
export async function callCost(plan: Plan): Promise<Measurement[]> {
  return [await ofPlainRows(plan), await ofTensors(plan), await ofThread(plan)];
}

async function ofPlainRows(plan: Plan): Promise<Measurement> {
  const serving = createServing({
    name: 'plain',
    model: { useFactory: () => (rows: number[]) => rows },
    batchSize,
  });
  await serving.start();
  const loader = new DataLoader<number, number>(async (rows) => rows, {
    cache: false,
    maxBatchSize: batchSize,
  });
  const measurement = await comparePair(plan, {
    title: 'a plain row, beside dataloader',
    aim: { atMost: 6.5 },
    rowsPerSecond: 300_000,
    serving: () => serving.batchedRun(1),
    baseline: () => loader.load(1),
  });
  await serving.close();
  return measurement;
}

async function ofTensors(plan: Plan): Promise<Measurement> {
  const serving = createServing({
    name: 'tensors',
    model: { useFactory: () => (rows: Tensor) => rows },
    batchSize,
  });
  await serving.start();
  const batcher = new MinimalBatcher((rows) => rows);
  const measurement = await comparePair(plan, {
    title: `a tensor of ${size} floats through a function, beside a batcher by hand`,
    aim: { atMost: 1.5 },
    rowsPerSecond: 150_000,
    serving: () => serving.batchedRun(tensor()),
    baseline: () => batcher.call(row),
  });
  await serving.close();
  return measurement;
}

async function ofThread(plan: Plan): Promise<Measurement> {
  const serving = createServing({
    name: digits.name,
    model: { file: digits.path, session },
    batchSize,
  });
  await serving.start();
  const thread = await Thread.start(digits);
  const batcher = new MinimalBatcher((rows) => thread.run(rows));
  const measurement = await comparePair(plan, {
    title: 'a row of the digits model in a thread, beside a batcher by hand',
    aim: { atMost: 3.5 },
    rowsPerSecond: 100_000,
    serving: () => serving.batchedRun({ image: tensor() }),
    baseline: () => batcher.call(row),
  });
  await Promise.all([serving.close(), thread.close()]);
  return measurement;
}

async function comparePair(
  { rounds, seconds }: Plan,
  { title, aim, rowsPerSecond, serving, baseline }: Pair,
): Promise<Measurement> {
  const rows = Math.ceil(rowsPerSecond * seconds);
  const load = { callers: 64, rowsPerCall: 1, rows, warmup: 64 * batchSize };
  const sides = await interleave(rounds, {
    serving: () => mainThreadTimePerRow(load, serving),
    baseline: () => mainThreadTimePerRow(load, baseline),
  });
  return compare({
    figure: 'P14',
    title: `event loop, ${title}`,
    aim,
    by: 'ratio',
    sides,
    sideUnit: 'µs',
  });
}
