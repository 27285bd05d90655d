import { createServing } from 'nestjs-serving';
import { InferenceSession } from 'onnxruntime-node';
import { AnsweringProcess } from '../contenders/answering-process.js';
import { Thread } from '../contenders/thread.js';
import { rowsPerSecond } from '../harness/callers.js';
import { compare, type Measurement } from '../harness/measurement.js';
import type { Plan } from '../harness/plan.js';
import { interleave } from '../harness/rounds.js';
import { convolution } from '../models/convolution.js';
import { encoder } from '../models/encoder.js';
import { mlp } from '../models/mlp.js';
import { type BenchmarkModel, sessionOf } from '../models/model.js';
import { randomRows } from '../models/random.js';

type Serving = ReturnType<typeof createServing>;

const batchSizes = [1, 8, 32, 128, 256];
const models = [mlp, encoder, convolution].map((model) => ({
  ...model,
  executionProviders: ['cuda'],
}));

/** P28: a model on an NVIDIA GPU, natively and in a thread, beside onnxruntime in Python. */
export async function cuda(plan: Plan): Promise<Measurement[]> {
  const measurements: Measurement[] = [];
  for (const model of models) {
    const python = await pythonOf(model);
    if (!python) {
      console.warn(
        'P28 is left out: it needs an NVIDIA GPU, the CUDA libraries of onnxruntime-node ' +
          '(docs/guides/gpu.md), and onnxruntime-gpu in the Python that PYTHON names',
      );
      return [];
    }
    const thread = await Thread.start(model);
    for (const batchSize of batchSizes) {
      measurements.push(...(await ofBatches(batchSize, model, { thread, python }, plan)));
    }
    await Promise.all([thread.close(), python.close()]);
  }
  return measurements;
}

/** Undefined without CUDA, in Node or in Python. */
async function pythonOf(model: BenchmarkModel): Promise<AnsweringProcess | undefined> {
  const hasCuda = await InferenceSession.create(model.path, sessionOf(model)).then(
    async (session) => (await session.release(), true),
    () => false,
  );
  return hasCuda
    ? AnsweringProcess.start(process.env['PYTHON'] ?? 'python3', [
        'test/benchmark/contenders/cuda.py',
        model.path,
        ...model.rowShape.map(String),
      ])
    : undefined;
}

async function ofBatches(
  batchSize: number,
  model: BenchmarkModel,
  { thread, python }: { readonly thread: Thread; readonly python: AnsweringProcess },
  { rounds, seconds }: Plan,
): Promise<Measurement[]> {
  const [own, pair, threads] = (
    [
      ['native', 1],
      ['native', 2],
      ['thread', 1],
    ] as const
  ).map(([isolation, partitions]) =>
    createServing({
      name: model.name,
      model: { file: model.path, session: sessionOf(model), isolation },
      batchSize,
      partitions,
    }),
  ) as [Serving, Serving, Serving];
  const servings = [own, pair, threads];
  await Promise.all(servings.map((serving) => serving.start()));
  const runs = Math.ceil(seconds / ((await thread.loop(batchSize, 20)) / 20));
  const rows = runs * batchSize;
  const batch = randomRows(batchSize, model.rowShape);
  const row = randomRows(1, model.rowShape);
  const warmup = 2 * batchSize;
  const inBatches = { callers: 2, rowsPerCall: batchSize, rows, warmup };
  const inRows = { callers: 4 * batchSize, rowsPerCall: 1, rows, warmup };
  const ofRows = (serving: Serving) => (): Promise<number> =>
    rowsPerSecond(inRows, () => serving.batchedRun(row));
  const inPython = async (way: string): Promise<number> =>
    rows / (await python.ask(`${way} ${batchSize} ${runs}`));
  const sides = await interleave(rounds, {
    'native, whole batches': () => rowsPerSecond(inBatches, () => own.batchedRun(batch)),
    Python: () => inPython('copied'),
    'raw thread': async () => rows / (await thread.loop(batchSize, runs)),
    native: ofRows(own),
    'native, two at a time': ofRows(pair),
    threads: ofRows(threads),
    'Python, data on the GPU': () => inPython('bound'),
  });
  await Promise.all(servings.map((serving) => serving.close()));

  const { 'native, whole batches': whole, Python, 'raw thread': raw, native, ...others } = sides;
  const title = `${model.name} on CUDA, batches of ${batchSize}`;
  const rest = { figure: 'P28', by: 'ratio', sideUnit: 'rows/s' } as const;
  return [
    compare({
      ...rest,
      title: `${title}, whole ones`,
      aim: { atLeast: 0.95 },
      sides: { native: whole, Python, 'raw thread': raw },
    }),
    compare({
      ...rest,
      title: `${title}, a row per call`,
      ...(batchSize === 256 ? { aim: { atLeast: 0.5 } } : { better: 'higher' as const }),
      sides: { native, Python, ...others },
    }),
  ];
}
