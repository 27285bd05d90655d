import { createServing, Tensor } from 'nestjs-serving';
import { AnsweringProcess } from '../contenders/answering-process.js';
import { rowsPerSecond } from '../harness/callers.js';
import { compare, type Measurement } from '../harness/measurement.js';
import type { Plan } from '../harness/plan.js';
import { interleave } from '../harness/rounds.js';
import { batchSize } from '../models/model.js';
import { randomFloats } from '../models/weights.js';

const [callers, size, batchTimeout] = [256, 784, 5];

/** P15: the same serving in Elixir, from which this one has its form. */
export async function besideNx({ rounds, seconds }: Plan): Promise<Measurement[]> {
  const nx = await AnsweringProcess.start('elixir', [
    'test/benchmark/nx/serving.exs',
    ...[callers, size, batchSize, batchTimeout].map(String),
  ]);
  if (!nx) {
    console.warn(
      'P15 is left out: it needs Elixir, and once `mix local.hex --force && elixir test/benchmark/nx/serving.exs`',
    );
    return [];
  }
  const serving = createServing({
    name: 'identity',
    model: { useFactory: () => (rows: Tensor) => rows },
    batchSize,
    batchTimeout,
  });
  await serving.start();
  const data = randomFloats(size, 1);
  const load = {
    callers,
    rowsPerCall: 1,
    rows: Math.ceil(seconds * 150_000),
    warmup: 8 * callers,
  };
  const sides = await interleave(rounds, {
    serving: () =>
      rowsPerSecond(load, () => serving.batchedRun(new Tensor('float32', data, [1, size]))),
    'Nx.Serving': () => nx.ask(seconds.toFixed(3)),
  });
  await Promise.all([serving.close(), nx.close()]);
  return [
    compare({
      figure: 'P15',
      title: `tensors of ${size} floats, ${callers} callers, beside Nx.Serving`,
      aim: { atLeast: 4 },
      by: 'ratio',
      sides,
      sideUnit: 'rows/s',
    }),
  ];
}
