import DataLoader from 'dataloader';
import { Batch, createServing, Tensor } from 'nestjs-serving';
import { rowsPerSecond } from '../harness/callers.js';
import { compare, type Measurement } from '../harness/measurement.js';
import type { Plan } from '../harness/plan.js';
import { interleave } from '../harness/rounds.js';
import { batchSize } from '../models/model.js';

const many = 100_000;
const few = 1_000;

/** P2: what it costs to collect rows and hand replies back, with no model behind it. */
export async function engine(plan: Plan): Promise<Measurement[]> {
  return [
    await againstDataloader(plan),
    await asTheQueueGrows(plan),
    await asTheShapesMultiply(plan),
    await asTheKeysMultiply(plan),
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

async function asTheQueueGrows({ rounds }: Plan): Promise<Measurement> {
  const serving = createServing({
    name: 'identity',
    model: { useFactory: () => identity<number[]> },
    batchSize,
    queue: { maxRows: many },
  });
  await serving.start();
  const loader = newDataloader();
  const sides = await interleave(rounds, {
    [`${many} waiting`]: () => costPerRow(many, many, () => serving.batchedRun(1)),
    [`${few} waiting`]: () => costPerRow(many, few, () => serving.batchedRun(1)),
    [`dataloader, ${many}`]: () => costPerRow(many, many, () => loader.load(1)),
    [`dataloader, ${few}`]: () => costPerRow(many, few, () => loader.load(1)),
  });
  await serving.close();

  return compare({
    figure: 'P2',
    title: 'cost of a row as the queue grows',
    better: 'lower',
    by: 'ratio',
    sides,
    sideUnit: 'µs',
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

/** What the rows of a serving with keys cost, against those of one without. */
async function asTheKeysMultiply({ rounds }: Plan): Promise<Measurement> {
  const keys = Array.from({ length: 16 }, (_, index) => `key ${index}`);
  const options = {
    model: { useFactory: () => identity<number[]> },
    batchSize,
    queue: { maxRows: many },
  };
  const keyed = createServing({ name: 'keyed', ...options, batchKeys: keys });
  const plain = createServing({ name: 'plain', ...options });
  await Promise.all([keyed.start(), plain.start()]);
  const one = Batch.stack([1]);
  const ofKeys = keys.map((key) => one.withKey(key));
  const sides = await interleave(rounds, {
    [`${keys.length} keys`]: () =>
      costPerRow(many, many, (index) => keyed.batchedRun(ofKeys[index % keys.length])),
    'no keys': () => costPerRow(many, many, () => plain.batchedRun(one)),
  });
  await Promise.all([keyed.close(), plain.close()]);

  return compare({
    figure: 'P2',
    title: 'cost of a row as keys multiply',
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

/** Microseconds a row, when `waiting` calls are always under way, each of so many rows. */
async function costPerRow(
  rows: number,
  waiting: number,
  call: (index: number) => Promise<unknown>,
  rowsPerCall = 1,
): Promise<number> {
  const start = performance.now();
  for (let done = 0; done < rows; done += waiting * rowsPerCall) {
    await Promise.all(Array.from({ length: waiting }, (_, index) => call(index)));
  }
  return ((performance.now() - start) / rows) * 1000;
}
