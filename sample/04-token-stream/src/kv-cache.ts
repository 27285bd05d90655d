import { type InferenceSession } from 'onnxruntime-node';
import { Tensor } from 'nestjs-serving';

/**
 * Keys and values of all tokens so far: a tensor [rows, heads, tokens, width] for each `0.key`,
 * `0.value`, `1.key`...
 */
export type KvCache = ReadonlyMap<string, Tensor>;

const past = 'past_key_values.';
const present = 'present.';

/** The cache before the first token. */
export function emptyCache(session: InferenceSession, rows: number): KvCache {
  return new Map(
    session.inputMetadata.flatMap((input) => {
      if (!input.isTensor || !input.name.startsWith(past)) {
        return [];
      }
      const [, heads, , width] = input.shape as [string, number, string, number];
      return [
        [
          input.name.slice(past.length),
          new Tensor('float32', new Float32Array(0), [rows, heads, 0, width]),
        ],
      ];
    }),
  );
}

/** As a step of the model takes it. */
export function toFeeds(cache: KvCache): Record<string, Tensor> {
  return Object.fromEntries(Array.from(cache, ([name, tensor]) => [past + name, tensor]));
}

/** As a step of the model gives it back, longer by the tokens of that step. */
export function fromResults(results: InferenceSession.OnnxValueMapType): KvCache {
  const names = Object.keys(results).filter((name) => name.startsWith(present));
  return new Map(names.map((name) => [name.slice(present.length), results[name] as Tensor]));
}

/** The cache of some of the rows: the others cost nothing any more. */
export function keepRows(cache: KvCache, rows: readonly number[]): KvCache {
  return new Map(Array.from(cache, ([name, tensor]) => [name, rowsOf(tensor, rows)]));
}

function rowsOf(tensor: Tensor, rows: readonly number[]): Tensor {
  const [, ...inner] = tensor.dims;
  const size = inner.reduce((product, length) => product * length, 1);
  const data = tensor.data as Float32Array;
  const kept = new Float32Array(rows.length * size);
  rows.forEach((row, index) => kept.set(data.subarray(row * size, (row + 1) * size), index * size));
  return new Tensor('float32', kept, [rows.length, ...inner]);
}
