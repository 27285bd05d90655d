import DataLoader from 'dataloader';
import { Batch, createServing, Tensor } from 'nestjs-serving';
import { costPerRow, rowsPerSecond } from '../harness/callers.js';
import { compare, type Measurement } from '../harness/measurement.js';
import type { Plan } from '../harness/plan.js';
import { interleave } from '../harness/rounds.js';
import { batchSize } from '../models/model.js';

const many = 100_000;

/** P2: what it costs to collect rows and hand replies back, with no model behind it. */
export async function engine(plan: Plan): Promise<Measurement[]> {
  return [
    await againstDataloader(plan),
    await asTheShapesMultiply(plan),
    await asItIsStreamed(plan),
  ];
}

async function againstDataloader({ rounds, seconds }: Plan): Promise<Measurement> {
  const serving = createServing({
    name: 'identity',
    model: { useFactory: () => identity<number[]> },
    batchSize,
  });
  await serving.start();
  const loader = newDataloader();

  const load = {
    callers: 256,
    rowsPerCall: 1,
    rows: Math.ceil(seconds * 200_000),
    warmup: 320 * batchSize,
  };
  const sides = await interleave(rounds, {
    serving: () => rowsPerSecond(load, () => serving.batchedRun(1)),
    dataloader: () => rowsPerSecond(load, () => loader.load(1)),
  });
  await serving.close();

  const title = `engine alone, ${load.callers} callers`;
  return compare({
    figure: 'P2',
    title,
    aim: { atLeast: 0.35 },
    by: 'ratio',
    sides,
    sideUnit: 'rows/s',
  });
}

/**
 * Rows of different lengths cannot share a batch; the rows of one length are as long as the others
 * are on average.
 */
async function asTheShapesMultiply({ rounds }: Plan): Promise<Measurement> {
  const serving = createServing({
    name: 'tensors',
    model: { useFactory: () => identity<Tensor> },
    batchSize,
    queue: { maxRows: many },
  });
  await serving.start();
  const shapes = Array.from({ length: 1000 }, (_, index) => tensorRow(index + 1));
  const average = tensorRow(500);
  const rows = shapes.length * batchSize;
  const sides = await interleave(rounds, {
    [`${shapes.length} shapes`]: () =>
      costPerRow(rows, rows, (index) => serving.batchedRun(shapes[index % shapes.length])),
    '1 shape': () => costPerRow(rows, rows, () => serving.batchedRun(average)),
  });
  await serving.close();

  return compare({
    figure: 'P2',
    title: 'cost of a tensor row as shapes multiply',
    better: 'lower',
    by: 'ratio',
    sides,
    sideUnit: 'µs',
  });
}

/** What the rows of one large call cost when its output is read as it comes, against a reply. */
async function asItIsStreamed({ rounds }: Plan): Promise<Measurement> {
  const serving = createServing({
    name: 'streamed',
    model: { useFactory: () => identity<number[]> },
    batchSize,
    queue: { maxRows: many },
  });
  await serving.start();
  const batch = Batch.stack(Array.from({ length: many }, (_, index) => index));
  const sides = await interleave(rounds, {
    streamed: () => costPerRow(many, 1, () => readAll(serving.stream(batch)), many),
    replied: () => costPerRow(many, 1, () => serving.batchedRun(batch), many),
  });
  await serving.close();

  return compare({
    figure: 'P2',
    title: 'cost of a row of a large call, streamed',
    better: 'lower',
    by: 'ratio',
    sides,
    sideUnit: 'µs',
  });
}

async function readAll(events: AsyncIterable<unknown>): Promise<void> {
  for await (const _ of events) {
    // Reading is all there is to do.
  }
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
