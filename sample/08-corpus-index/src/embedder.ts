import { textEmbedding } from 'nestjs-serving/tasks';
import { fetchModel } from './fetch-model.js';

/** A serving that turns a text into its meaning, a unit vector. */
export async function createEmbedder() {
  return textEmbedding({
    name: 'embedder',
    model: {
      from: process.env.MODEL ?? (await fetchModel()),
      // One thread, since each worker process takes a core of its own.
      session: { intraOpNumThreads: 1 },
    },
    pooling: 'mean',
    tooLong: 'cut',
    specialTokens: 'accept',
  });
}
