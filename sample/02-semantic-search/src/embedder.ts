import { Tokenizer } from '@huggingface/tokenizers';
import { defineServing, Tensor } from 'nestjs-serving';
import { readFile } from 'node:fs/promises';
import { join } from 'node:path';

/**
 * Token counts that texts are padded to. Each is a lane of its own: only rows of one length fit
 * into one tensor.
 */
const lengths = [8, 16, 32, 64, 128];
const longest = 128;

/** A serving that turns a text into its meaning: a unit vector of 384 numbers. */
export async function createEmbedder(modelFolder: string) {
  const readJson = async (name: string) =>
    JSON.parse(await readFile(join(modelFolder, name), 'utf8')) as object;
  const tokenizer = new Tokenizer(
    await readJson('tokenizer.json'),
    await readJson('tokenizer_config.json'),
  );

  return defineServing({
    name: 'embedder',
    model: join(modelFolder, 'model.onnx'),

    preprocess(text: string) {
      const { ids, attention_mask } = tokenizer.encode(text);
      // A text that is too long is cut. The closing token stays, since each text of the model's
      // training had it.
      if (ids.length > longest) {
        ids.splice(longest - 1, ids.length - longest);
      }
      const length = lengths.find((bucket) => bucket >= ids.length) ?? longest;
      return {
        batch: {
          input_ids: row(ids, length),
          attention_mask: row(attention_mask, length),
          token_type_ids: row([], length),
        },
        info: { tokens: ids.length },
      };
    },

    postprocess({ last_hidden_state }: { last_hidden_state: Tensor }, { info }) {
      return normalize(sum(last_hidden_state, info.tokens));
    },
  });
}

/** One row of a tensor, filled up with zeros. */
function row(values: readonly number[], length: number): Tensor {
  const filled = Array.from({ length }, (_, index) => BigInt(values[index] ?? 0));
  return new Tensor('int64', filled, [1, length]);
}

/**
 * Mean pooling: adds up the vectors of the text's own tokens, not of the padding. Scaling is left
 * to `normalize`.
 */
function sum(hidden: Tensor, tokens: number): Float32Array {
  const [, , width = 0] = hidden.dims;
  const values = hidden.data as Float32Array;
  const total = new Float32Array(width);
  for (let index = 0; index < tokens * width; index++) {
    total[index % width]! += values[index]!;
  }
  return total;
}

/** L2 normalisation, so that the cosine of two vectors is their dot product. */
function normalize(vector: Float32Array): Float32Array {
  const length = Math.hypot(...vector);
  return vector.map((value) => value / length);
}
