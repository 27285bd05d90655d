import { readFileSync } from 'node:fs';
import { join } from 'node:path';
import { Tokenizer } from '@huggingface/tokenizers';
import { InferenceSession, Tensor } from 'onnxruntime-node';
import { textOf } from '../models/texts.js';
import { randomFloats } from '../models/weights.js';
import { type Questions, questionsWith } from './questions.js';

const count = 160;
const leastCosine = 0.9999;

/** One text per request, of mixed lengths, by OpenAI's API. The answer is the vector of the text. */
export async function textQuestions(folder: string): Promise<Questions> {
  const texts = shuffled(Array.from({ length: count }, (_, index) => textOf(index)));
  const answers = await vectorsOf(texts, folder);
  const bodies = texts.map((input) => JSON.stringify({ model: 'embedder', input }));
  return questionsWith('/v1/embeddings', bodies, (reply, body) => {
    const vector = vectorIn(reply);
    return vector !== undefined && cosine(vector, answers[body]!) > leastCosine;
  });
}

/** The same order at every run. */
function shuffled(texts: readonly string[]): string[] {
  const keys = randomFloats(texts.length, 1);
  return texts
    .map((text, index) => ({ text, key: keys[index]! }))
    .toSorted((one, other) => one.key - other.key)
    .map(({ text }) => text);
}

/** By a session, for each text alone: the mean of its tokens' vectors. */
async function vectorsOf(texts: readonly string[], folder: string): Promise<Float32Array[]> {
  const read = (name: string): object =>
    JSON.parse(readFileSync(join(folder, name), 'utf8')) as object;
  const tokenizer = new Tokenizer(read('tokenizer.json'), read('tokenizer_config.json'));
  const session = await InferenceSession.create(join(folder, 'onnx/model.onnx'));
  const vectors: Float32Array[] = [];
  for (const text of texts) {
    const { ids } = tokenizer.encode(text);
    const dims = [1, ids.length];
    const tensorOf = (value: (id: number) => number) =>
      new Tensor('int64', BigInt64Array.from(ids.map(value), BigInt), dims);
    const { last_hidden_state: hidden } = await session.run({
      input_ids: tensorOf((id) => id),
      attention_mask: tensorOf(() => 1),
      token_type_ids: tensorOf(() => 0),
    });
    vectors.push(meanOf(hidden!.data as Float32Array, hidden!.dims[2]!));
  }
  await session.release();
  return vectors;
}

function meanOf(values: Float32Array, width: number): Float32Array {
  const mean = new Float32Array(width);
  values.forEach((value, at) => (mean[at % width]! += (value * width) / values.length));
  return mean;
}

/** Numbers, or their bytes in base64. Undefined if the server has refused. */
function vectorIn(reply: unknown): ArrayLike<number> | undefined {
  const { data } = (reply ?? {}) as {
    data?: readonly { embedding?: readonly number[] | string }[];
  };
  const embedding = data?.[0]?.embedding;
  return typeof embedding === 'string'
    ? new Float32Array(Uint8Array.from(Buffer.from(embedding, 'base64')).buffer)
    : embedding;
}

/** NaN for vectors of different lengths. */
function cosine(one: ArrayLike<number>, other: ArrayLike<number>): number {
  return dot(one, other) / Math.sqrt(dot(one, one) * dot(other, other));
}

function dot(one: ArrayLike<number>, other: ArrayLike<number>): number {
  return one.length === other.length
    ? Array.from(one).reduce((sum, value, at) => sum + value * other[at]!, 0)
    : Number.NaN;
}
