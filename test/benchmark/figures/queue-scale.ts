import DataLoader from 'dataloader';
import { Batch, createServing, type LocalServing } from 'nestjs-serving';
import { costPerRow } from '../harness/callers.js';
import { compare, type Measurement } from '../harness/measurement.js';
import type { Plan } from '../harness/plan.js';
import { interleave } from '../harness/rounds.js';

const rows = 100_000;
/** So that also the shortest queue fills its batches. */
const batchSize = 10;
/** Waiting rows while the tenants and the keys multiply: one of each of the most, ten of each key. */
const waiting = 10_000;

/** P26: what a row costs as the queue grows, and as tenants and keys multiply in it. */
export async function queueScale(plan: Plan): Promise<Measurement[]> {
  return [await asTheQueueGrows(plan), await asTenantsMultiply(plan), await asKeysMultiply(plan)];
}

async function asTheQueueGrows({ rounds }: Plan): Promise<Measurement> {
  const serving = await idleServing();
  const loader = new DataLoader(async (all: readonly number[]) => all, {
    cache: false,
    maxBatchSize: batchSize,
  });
  const [shortest, most] = [10, rows];
  const costs = await interleave(rounds, {
    ...sidesOf([most, shortest, 100, 1_000, 10_000], 'waiting', (count) =>
      costPerRow(rows, count, () => serving.batchedRun(1)),
    ),
    [`dataloader, ${most}`]: () => costPerRow(rows, most, () => loader.load(1)),
    [`dataloader, ${shortest}`]: () => costPerRow(rows, shortest, () => loader.load(1)),
  });
  await serving.close();
  return measurementOf('the queue grows', costs);
}

async function asTenantsMultiply({ rounds }: Plan): Promise<Measurement> {
  const serving = await idleServing();
  const costs = await interleave(
    rounds,
    sidesOf([10_000, 1, 100], 'tenants', (count) => {
      const tenants = Array.from({ length: count }, (_, index) => ({ tenant: `tenant ${index}` }));
      return costPerRow(rows, waiting, (index) => serving.batchedRun(1, tenants[index % count]));
    }),
  );
  await serving.close();
  return measurementOf('tenants multiply', costs);
}

async function asKeysMultiply({ rounds }: Plan): Promise<Measurement> {
  const keys = Array.from({ length: 1_000 }, (_, index) => `key ${index}`);
  const serving = await idleServing(keys);
  const ofKeys = keys.map((key) => Batch.stack([1]).withKey(key));
  const costs = await interleave(
    rounds,
    sidesOf([1_000, 1, 100], 'keys', (count) =>
      costPerRow(rows, waiting, (index) => serving.batchedRun(ofKeys[index % count])),
    ),
  );
  await serving.close();
  return measurementOf('keys multiply', costs);
}

async function idleServing(batchKeys?: readonly string[]): Promise<LocalServing> {
  const serving = createServing({
    name: 'identity',
    model: { useFactory: () => (all: number[]) => all },
    batchSize,
    queue: { maxRows: rows },
    ...(batchKeys && { batchKeys }),
  });
  await serving.start();
  return serving;
}

function sidesOf(
  counts: readonly number[],
  what: string,
  cost: (count: number) => Promise<number>,
): Record<string, () => Promise<number>> {
  return Object.fromEntries(counts.map((count) => [`${count} ${what}`, () => cost(count)]));
}

/** The first side has the most, the second one the least. */
function measurementOf(as: string, sides: Readonly<Record<string, number[]>>): Measurement {
  return compare({
    figure: 'P26',
    title: `cost of a row as ${as}`,
    aim: { atMost: 1.5 },
    by: 'ratio',
    sides,
    sideUnit: 'µs',
  });
}
