import { execFile } from 'node:child_process';
import { lookup } from 'node:dns/promises';
import { readFile } from 'node:fs/promises';
import { availableParallelism } from 'node:os';
import { fileURLToPath } from 'node:url';
import { promisify } from 'node:util';
import { createServing } from 'nestjs-serving';
import { rowsPerSecond } from '../harness/callers.js';
import { typicalLatency } from '../harness/latency.js';
import { compare, type Measurement } from '../harness/measurement.js';
import type { Plan } from '../harness/plan.js';
import { interleave } from '../harness/rounds.js';
import { digits } from '../models/digits.js';
import { mlp } from '../models/mlp.js';
import { batchSize, type BenchmarkModel, session } from '../models/model.js';
import { randomRows } from '../models/random.js';

/** P29: native sessions beside threads: speed, and what more partitions cost. */
export async function native(plan: Plan): Promise<Measurement[]> {
  return [
    ...(await speedOf(digits, plan)),
    ...(await speedOf(mlp, plan)),
    await poolBesideRuns(plan),
    ...(await costs(plan)),
  ];
}

async function speedOf(
  { name, path, rowShape }: BenchmarkModel,
  plan: Plan,
): Promise<Measurement[]> {
  const [own, threads] = (['native', 'thread'] as const).map((isolation) =>
    createServing({ name: isolation, batchSize, model: { file: path, session, isolation } }),
  );
  await Promise.all([own!.start(), threads!.start()]);
  const row = randomRows(1, rowShape);
  const lone = (call: () => Promise<unknown>) => (): Promise<number> =>
    typicalLatency(plan.seconds / 2, call, 0);
  const calls = await interleave(plan.rounds, {
    native: lone(() => own!.batchedRun(row)),
    thread: lone(() => threads!.batchedRun(row)),
  });
  const rate = await rowsPerSecond(loadOf(1000), () => threads!.batchedRun(row));
  const load = loadOf(Math.ceil(rate * plan.seconds));
  const loads = await interleave(plan.rounds, {
    native: () => rowsPerSecond(load, () => own!.batchedRun(row)),
    thread: () => rowsPerSecond(load, () => threads!.batchedRun(row)),
  });
  await Promise.all([own!.close(), threads!.close()]);
  return [
    compare({
      figure: 'P29',
      title: `p50 of a lone call, native beside a thread, ${name}`,
      aim: { atMost: 1 },
      by: 'ratio',
      sides: calls,
      sideUnit: 'ms',
    }),
    compare({
      figure: 'P29',
      title: `saturated, native beside a thread, ${name}`,
      better: 'higher',
      by: 'ratio',
      sides: loads,
      sideUnit: 'rows/s',
    }),
  ];
}

const loadOf = (rows: number) => ({
  callers: 4 * batchSize,
  rowsPerCall: 1,
  rows,
  warmup: 2 * batchSize,
});

/** As many as cores: with more, whatever needs a core waits for one. */
const PARTITIONS = availableParallelism();

/** Reads a file and looks up a name while all partitions run: natively ÷ in threads. */
async function poolBesideRuns(plan: Plan): Promise<Measurement> {
  const servings = (['native', 'thread'] as const).map((isolation) =>
    createServing({
      name: isolation,
      batchSize: 1,
      partitions: PARTITIONS,
      model: { file: mlp.path, session, isolation },
    }),
  );
  const row = randomRows(1, mlp.rowShape);
  const beside = (serving: (typeof servings)[number]) => async (): Promise<number> => {
    const over = new AbortController();
    const callers = Array.from({ length: 2 * PARTITIONS }, async () => {
      while (!over.signal.aborted) {
        await serving.batchedRun(row);
      }
    });
    const latency = await typicalLatency(
      plan.seconds / 2,
      () => Promise.all([readFile(digits.path), lookup('localhost')]),
      0,
    );
    over.abort();
    await Promise.all(callers);
    return latency;
  };
  await Promise.all(servings.map((serving) => serving.start()));
  const [own, threads] = servings;
  const sides = await interleave(plan.rounds, { native: beside(own!), thread: beside(threads!) });
  await Promise.all(servings.map((serving) => serving.close()));
  return compare({
    figure: 'P29',
    title: `p50 of a file and a host name beside a saturated partition for each core, native beside threads`,
    aim: { atMost: 1.5 },
    by: 'ratio',
    sides,
    sideUnit: 'ms',
  });
}

/** Four partitions ÷ one: the time until they are started, and the memory that they take. */
async function costs(plan: Plan): Promise<Measurement[]> {
  const measured: Record<string, Cost[]> = {};
  for (const isolation of ['native', 'thread']) {
    for (const partitions of [4, 1]) {
      const costsOf = (measured[`${isolation} ${partitions}`] = [] as Cost[]);
      for (let round = 0; round < Math.ceil(plan.rounds / 2); round++) {
        costsOf.push(await costOf(isolation, partitions));
      }
    }
  }
  return ['native', 'thread'].flatMap((isolation) =>
    (['memory', 'time'] as const).map((what) => {
      const side = (partitions: number): number[] =>
        measured[`${isolation} ${partitions}`]!.map((cost) => cost[what]);
      return compare({
        figure: 'P29',
        title: `${what} of four partitions beside one, ${isolation}, ${mlp.name}`,
        ...(isolation === 'native' && { aim: { atMost: what === 'memory' ? 1.1 : 1.2 } }),
        ...(isolation === 'thread' && { better: 'lower' as const }),
        by: 'ratio',
        sides: { 'four partitions': side(4), 'one partition': side(1) },
        sideUnit: what === 'memory' ? 'MB' : 'ms',
      });
    }),
  );
}

interface Cost {
  readonly time: number;
  readonly memory: number;
}

async function costOf(isolation: string, partitions: number): Promise<Cost> {
  const script = fileURLToPath(new URL('../contenders/start-partitions.js', import.meta.url));
  const { stdout } = await promisify(execFile)(process.execPath, [
    script,
    isolation,
    `${partitions}`,
  ]);
  return JSON.parse(stdout.trim().split('\n').at(-1)!) as Cost;
}
