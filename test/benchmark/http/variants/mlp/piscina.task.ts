import { InferenceSession, Tensor } from 'onnxruntime-node';
import { move, workerData } from 'piscina';
import { type BenchmarkModel, session as options } from '../../../models/model.js';

const { path, rowShape } = workerData as BenchmarkModel;
const session = await InferenceSession.create(path, options);

export default async function score(row: Float32Array): Promise<unknown> {
  const { output } = await session.run({ input: new Tensor('float32', row, [1, ...rowShape]) });
  return move(output?.data as Float32Array<ArrayBuffer>);
}
