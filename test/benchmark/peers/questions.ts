import { readFileSync, writeFileSync } from 'node:fs';
import { join } from 'node:path';
import { InferenceSession, Tensor } from 'onnxruntime-node';
import type { BenchmarkModel } from '../models/model.js';
import { randomFloats } from '../models/weights.js';
import { folder, type Peer } from './peers.js';

/** Requests that differ, and what a session answers to each row alone. */
export interface Questions {
  /** A body a line. */
  readonly file: string;
  readonly bodies: readonly string[];
  readonly answers: readonly number[];
}

const count = 64;

export async function questionsOf(model: BenchmarkModel, peer: Peer): Promise<Questions> {
  const size = model.rowShape[0]!;
  const rows = model.path.endsWith('digits.onnx') ? drawings(size) : randomRows(size);
  const bodies = rows.map((row) => JSON.stringify({ input: peer.takesLists ? [row] : row }));
  const file = join(folder, 'requests.jsonl');
  writeFileSync(file, `${bodies.join('\n')}\n`);
  const session = await InferenceSession.create(model.path, { intraOpNumThreads: 1 });
  const answers: number[] = [];
  for (const row of rows) {
    const feeds = { [session.inputNames[0]!]: new Tensor('float32', row, [1, size]) };
    const { data } = (await session.run(feeds))[session.outputNames[0]!]!;
    const values = Array.from(data as Float32Array);
    answers.push(peer.isBare ? size : values.indexOf(Math.max(...values)));
  }
  await session.release();
  return { file, bodies, answers };
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
