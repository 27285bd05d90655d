import { defineServing } from 'nestjs-serving';

/** The most answers that are written at once. */
export const places = 8;

/** A serving that gives the answer to a `Prompt` token by token. */
export function createWriter(folder: string) {
  return defineServing({
    name: 'writer',
    // A thread runs JavaScript: the built file, also when this file runs from its source.
    model: {
      useFile: new URL('../dist/writer.thread.js', import.meta.url),
      sequence: {
        // Reading new prompts delays running answers: a step reads at most so many tokens.
        joins: { cost: 256 },
        // Tokens in the cache, of 8 KB each.
        maxCost: 8192,
      },
    },
    partitions: [{ folder }],
    batchSize: places,
  });
}
