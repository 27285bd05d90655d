import { parentPort, workerData } from 'node:worker_threads';
import { InferenceSession, Tensor } from 'onnxruntime-node';
import { type BenchmarkModel, sessionOf } from '../models/model.js';
import { randomRows } from '../models/random.js';
import { sizeOf } from '../models/weights.js';
import type { ThreadRequest } from './thread.js';

const model = workerData as BenchmarkModel;
const { path, rowShape } = model;
const session = await InferenceSession.create(path, sessionOf(model));
const [input = '', output = ''] = [session.inputNames[0], session.outputNames[0]];

parentPort?.on('message', (request: ThreadRequest) => void answer(request));
parentPort?.postMessage('ready');

async function answer(request: ThreadRequest): Promise<void> {
  if (request.kind === 'loop') {
    parentPort?.postMessage(await loop(request.rows, request.runs));
  } else {
    const data = await run(request.data);
    parentPort?.postMessage(data, [data.buffer]);
  }
}

async function loop(rows: number, runs: number): Promise<number> {
  const feeds = { [input]: randomRows(rows, rowShape) };
  const start = performance.now();
  for (let index = 0; index < runs; index++) {
    await session.run(feeds);
  }
  return (performance.now() - start) / 1000;
}

async function run(rows: Float32Array): Promise<Float32Array<ArrayBuffer>> {
  const dims = [rows.length / sizeOf(rowShape), ...rowShape];
  const results = await session.run({ [input]: new Tensor('float32', rows, dims) });
  return results[output]?.data as Float32Array<ArrayBuffer>;
}
