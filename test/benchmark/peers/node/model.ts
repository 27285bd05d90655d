import { InferenceSession, Tensor } from 'onnxruntime-node';

export const options = { intraOpNumThreads: 1 } satisfies InferenceSession.SessionOptions;
export const file = process.env['MODEL']!;
export const port = Number(process.env['PORT']);

/** The body of a request, and the reply: the place of the largest output. */
export class Row {
  readonly input!: number[];
}
export interface Reply {
  readonly index: number;
}

export function tensorOf({ input }: Row): Tensor {
  return new Tensor('float32', Float32Array.from(input), [1, input.length]);
}

export function largest(output: Tensor): Reply {
  return { index: indexOfLargest(output.data as Float32Array) };
}

export function indexOfLargest(values: Float32Array): number {
  let index = 0;
  for (let next = 1; next < values.length; next++) {
    if (values[next]! > values[index]!) index = next;
  }
  return index;
}

/** A run of one row by a session of this thread. */
export async function openModel(): Promise<(row: Row) => Promise<Reply>> {
  const session = await InferenceSession.create(file, options);
  const [input, output] = [session.inputNames[0]!, session.outputNames[0]!];
  return async (row) => largest((await session.run({ [input]: tensorOf(row) }))[output]!);
}
