import { fork } from 'node:child_process';
import { once } from 'node:events';
import { fileURLToPath } from 'node:url';
import { createServing, type LocalServing, Tensor } from 'nestjs-serving';
import { endpoint as modelOn } from 'nestjs-serving/inference-protocol';
import { mainThreadTimePerRow } from '../harness/callers.js';
import { compare, type Measurement } from '../harness/measurement.js';
import type { Plan } from '../harness/plan.js';
import { interleave } from '../harness/rounds.js';

const KiB = 1024;
const batchSize = 8;

/** P22: what a row costs the event loop whose batch goes to a model server, against a thread. */
export async function modelServer(plan: Plan): Promise<Measurement[]> {
  const server = fork(fileURLToPath(new URL('../contenders/model-server.js', import.meta.url)));
  const [port] = await once(server, 'message');
  const [endpoint, thread] = await Promise.all([
    start(
      createServing({
        name: 'endpoint',
        batchSize,
        model: modelOn(`grpc://127.0.0.1:${port}`),
      }),
    ),
    start(
      createServing({
        name: 'thread',
        batchSize,
        model: { useFile: new URL('../contenders/first-bytes.js', import.meta.url) },
      }),
    ),
  ]);
  const measurements: Measurement[] = [];
  for (const [size, bytes, rowsPerSecond] of [
    ['512 B', 512, 40_000],
    ['300 KB', 300 * KiB, 1500],
  ] as const) {
    const row = { x: new Tensor('uint8', new Uint8Array(bytes), [1, bytes]) };
    const rows = Math.ceil(rowsPerSecond * plan.seconds);
    const load = { callers: 4 * batchSize, rowsPerCall: 1, rows, warmup: 20 * batchSize };
    const timeOf = (serving: LocalServing) => () =>
      mainThreadTimePerRow(load, () => serving.batchedRun(row));
    measurements.push(
      compare({
        figure: 'P22',
        title: `event loop, a row of ${size} to a model server`,
        better: 'lower',
        by: 'ratio',
        sides: await interleave(plan.rounds, {
          endpoint: timeOf(endpoint),
          thread: timeOf(thread),
        }),
        sideUnit: 'µs',
      }),
    );
  }
  await Promise.all([endpoint.close(), thread.close()]);
  server.disconnect();
  return measurements;
}

async function start(serving: LocalServing): Promise<LocalServing> {
  await serving.start();
  return serving;
}
