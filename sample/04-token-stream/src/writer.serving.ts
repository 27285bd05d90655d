import type { ServingOf } from 'nestjs-serving';
import { type ModelFiles, textGeneration } from 'nestjs-serving/tasks';

/** The most answers that are written at once. */
export const places = 8;

/** A serving that answers a conversation, in pieces of text. */
export function createWriter(from: ModelFiles) {
  return textGeneration({ name: 'writer', model: { from }, batchSize: places, maxTokens: 1536 });
}

export type Writer = ServingOf<ReturnType<typeof createWriter>>;
