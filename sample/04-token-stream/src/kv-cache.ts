import { type InferenceSession } from 'onnxruntime-node';
import { Tensor } from 'nestjs-serving';

/**
 * Keys and values of all tokens so far: a tensor [rows, heads, tokens, width] for each `0.key`,
 * `0.value`, `1.key`... Each row has its tokens at the end; before them is padding.
 */
export type KvCache = ReadonlyMap<string, Tensor>;

/** One row of a cache, and the number of its tokens. */
export interface CachedRow {
  readonly cache: KvCache;
  readonly index: number;
  readonly length: number;
}

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

/**
 * One cache of these rows, as long as the longest of them: rows that have left, and the padding that
 * only they needed, take no more memory and time.
 */
export function gather(rows: readonly CachedRow[]): KvCache {
  const names = [...rows[0]!.cache.keys()];
  return new Map(names.map((name) => [name, gatherTensor(name, rows)]));
}

function gatherTensor(name: string, rows: readonly CachedRow[]): Tensor {
  const [, heads, , width] = rows[0]!.cache.get(name)!.dims as [number, number, number, number];
  const longest = Math.max(...rows.map(({ length }) => length));
  const gathered = new Float32Array(rows.length * heads * longest * width);
  for (const [row, { cache, index, length }] of rows.entries()) {
    const tensor = cache.get(name)!;
    const tokens = tensor.dims[2]!;
    const data = tensor.data as Float32Array;
    for (let head = 0; head < heads; head++) {
      const end = (index * heads + head + 1) * tokens * width;
      const at = (row * heads + head + 1) * longest * width - length * width;
      gathered.set(data.subarray(end - length * width, end), at);
    }
  }
  return new Tensor('float32', gathered, [rows.length, heads, longest, width]);
}
