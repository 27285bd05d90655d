import { createServing, type LocalServing, Tensor } from 'nestjs-serving';
import { typicalLatency } from '../harness/latency.js';
import { compare, type Measurement } from '../harness/measurement.js';
import type { Plan } from '../harness/plan.js';
import { interleave } from '../harness/rounds.js';

const KiB = 1024;

/** P7: what a row pays for the way to a process of its own and back, against a thread. */
export async function isolation(plan: Plan): Promise<Measurement[]> {
  const [thread, process] = await Promise.all([echo('thread'), echo('process')]);
  const measurements: Measurement[] = [];
  for (const [size, bytes] of Object.entries({
    '512 B': 512,
    '96 KB': 96 * KiB,
    '1.5 MB': 1536 * KiB,
  })) {
    const row = new Tensor('uint8', new Uint8Array(bytes), [1, bytes]);
    const sides = await interleave(plan.rounds, {
      process: () => roundTrip(process, row, plan),
      thread: () => roundTrip(thread, row, plan),
    });
    measurements.push(
      compare({
        figure: 'P7',
        title: `p50 of a round trip of ${size}`,
        better: 'lower',
        by: 'ratio',
        sides,
        sideUnit: 'µs',
      }),
    );
  }
  await Promise.all([thread.close(), process.close()]);
  return measurements;
}

async function echo(how: 'thread' | 'process'): Promise<LocalServing> {
  const useFile = new URL('../contenders/echo.js', import.meta.url);
  const serving = createServing({ name: how, model: { useFile, isolation: how } });
  await serving.start();
  return serving;
}

async function roundTrip(serving: LocalServing, row: Tensor, { seconds }: Plan): Promise<number> {
  return 1000 * (await typicalLatency(seconds / 2, () => serving.batchedRun(row)));
}
