import { textEmbedding } from 'nestjs-serving/tasks';

/** A serving that turns a text into its meaning: a unit vector of 384 numbers. */
export function createEmbedder(modelFolder: string) {
  return textEmbedding({
    name: 'embedder',
    model: modelFolder,
    pooling: 'mean',
    maxTokens: 128,
    // A question may be as long as its author likes.
    tooLong: 'cut',
    specialTokens: 'accept',
  });
}
