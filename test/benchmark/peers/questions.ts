import { readFileSync, writeFileSync } from 'node:fs';
import { join } from 'node:path';
import { InferenceSession, Tensor } from 'onnxruntime-node';
import type { BenchmarkModel } from '../models/model.js';
import { randomFloats } from '../models/weights.js';
import { folder, type Peer } from './peers.js';

/** Requests that differ. */
export interface Questions {
  /** Of the route. */
  readonly path: string;
  /** A body a line. */
  readonly file: string;
  readonly bodies: readonly string[];
  /** True if the reply to a body is that of a session for this body alone. */
  isRight(reply: unknown, body: number): boolean;
}

export function questionsWith(
  path: string,
  bodies: readonly string[],
  isRight: Questions['isRight'],
): Questions {
  const file = join(folder, 'requests.jsonl');
  writeFileSync(file, `${bodies.join('\n')}\n`);
  return { path, file, bodies, isRight };
}

const count = 64;

/** Rows of numbers. The answer is the place of the model's largest output. */
export async function rowQuestions(model: BenchmarkModel, peer: Peer): Promise<Questions> {
  const size = model.rowShape[0]!;
  const rows = model.path.endsWith('digits.onnx') ? drawings(size) : randomRows(size);
  const bodies = rows.map((row) => JSON.stringify({ input: peer.takesLists ? [row] : row }));
  const session = await InferenceSession.create(model.path, { intraOpNumThreads: 1 });
  const answers: number[] = [];
  for (const row of rows) {
    const feeds = { [session.inputNames[0]!]: new Tensor('float32', row, [1, size]) };
    const { data } = (await session.run(feeds))[session.outputNames[0]!]!;
    const values = Array.from(data as Float32Array);
    answers.push(peer.isBare ? size : values.indexOf(Math.max(...values)));
  }
  await session.release();
  return questionsWith('/predict', bodies, (reply, body) => placeIn(reply) === answers[body]);
}

function placeIn(reply: unknown): number | undefined {
  return Array.isArray(reply)
    ? (reply[0] as number)
    : (reply as { readonly index?: number } | null)?.index;
}

/** Some of the drawings that the digits sample is tested with: a label, and the pixels. */
function drawings(size: number): number[][] {
  const bytes = readFileSync('sample/01-digits/model/digits.bin');
  return Array.from({ length: count }, (_, index) => {
    const start = index * (size + 1) + 1;
    return Array.from(bytes.subarray(start, start + size), (pixel) => decimals(pixel / 255, 4));
  });
}

function randomRows(size: number): number[][] {
  const values = Array.from(randomFloats(count * size, 2), (value) => decimals(value, 6));
  return Array.from({ length: count }, (_, index) =>
    values.slice(index * size, (index + 1) * size),
  );
}

function decimals(value: number, digits: number): number {
  return Number(value.toFixed(digits));
}
