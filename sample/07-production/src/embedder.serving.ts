import { Tokenizer } from '@huggingface/tokenizers';
import { defineServing, Tensor } from 'nestjs-serving';
import { readFile } from 'node:fs/promises';
import { join } from 'node:path';
import { modelFile } from './model-file.js';
import type { Settings } from './settings.js';

const maxTokens = 128;
/** The numbers of tokens that texts are padded to: texts of one length share batches. */
const lengths = [16, 32, 64, maxTokens];

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
    rollout: {
      // #endregion
      version: settings.modelVersion,
    },
    // A version gets calls once it has run this.
    warmUp: ['Where is my parcel?'],
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
      const length = lengths.find((each) => ids.length <= each)!;
      return {
        batch: {
          input_ids: rowOf(ids, length),
          attention_mask: rowOf(
            ids.map(() => 1),
            length,
          ),
          token_type_ids: rowOf([], length),
        },
        info: { tokens: ids.length },
      };
    },

    postprocess({ last_hidden_state }: { last_hidden_state: Tensor }, { info }) {
      return meanVector(last_hidden_state, info.tokens);
    },
  });
}

/** One row of a tensor, filled up with zeros. */
function rowOf(values: readonly number[], length: number): Tensor {
  const filled = new BigInt64Array(length);
  filled.set(values.map(BigInt));
  return new Tensor('int64', filled, [1, length]);
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
