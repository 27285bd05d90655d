import { Tokenizer } from '@huggingface/tokenizers';
import { defineServing, lengthBuckets, Tensor } from 'nestjs-serving';
import { readFile } from 'node:fs/promises';
import { join } from 'node:path';
import { modelFile } from './model-file.js';
import type { Settings } from './settings.js';

const maxTokens = 128;
/** Texts share batches with texts of similar length. */
const buckets = lengthBuckets([16, 32, 64, maxTokens]);

/** A serving that turns a text into its meaning: a unit vector of 384 numbers. */
export async function createEmbedder(tokenizerFolder: string, settings: Settings) {
  const [vocabulary, config] = await Promise.all(
    ['tokenizer.json', 'tokenizer_config.json'].map(
      async (file) => JSON.parse(await readFile(join(tokenizerFolder, file), 'utf8')) as object,
    ),
  );
  const tokenizer = new Tokenizer(vocabulary!, config!);

  return defineServing({
    name: 'embedder',
    // #region model
    model: {
      file: modelFile(settings.modelVersion),
      session: { intraOpNumThreads: settings.modelThreads },
    },
    // #endregion
    version: settings.modelVersion,
    // A version gets calls once it has run this.
    warmUp: ['Where is my parcel?'],
    batchKeys: buckets.keys,
    timeout: settings.callTimeout,
    queue: { maxRows: settings.queueMaxRows },
    shutdown: { timeout: settings.shutdownTimeout },

    preprocess(text: string) {
      // Tokenizing runs on the event loop. A token has four to five characters on average.
      const { ids } = tokenizer.encode(text.slice(0, 5 * maxTokens));
      if (ids.length > maxTokens) {
        // The closing token stays: the model has never seen a text without it.
        ids.splice(maxTokens - 1, ids.length - maxTokens);
      }
      const batch = buckets.batch({
        input_ids: rowOf(ids),
        attention_mask: rowOf(ids.map(() => 1)),
        token_type_ids: rowOf(ids.map(() => 0)),
      });
      return { batch, info: { tokens: ids.length } };
    },

    postprocess({ last_hidden_state }: { last_hidden_state: Tensor }, { info }) {
      return meanVector(last_hidden_state, info.tokens);
    },
  });
}

function rowOf(values: readonly number[]): Tensor {
  return new Tensor('int64', BigInt64Array.from(values, BigInt), [1, values.length]);
}

/** The mean of the vectors of the first tokens (the others are padding), scaled to length 1. */
export function meanVector({ data, dims }: Tensor, tokens: number): Float32Array {
  const width = dims[2]!;
  const sum = new Float32Array(width);
  for (let i = 0; i < tokens * width; i++) {
    sum[i % width]! += (data as Float32Array)[i]!;
  }
  const length = Math.hypot(...sum);
  return sum.map((value) => value / length);
}
