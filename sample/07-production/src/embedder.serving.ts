import { textEmbedding } from 'nestjs-serving/tasks';
import { modelOf } from './model-file.js';
import type { Settings } from './settings.js';

/** A serving that turns a text into its meaning: a unit vector of 384 numbers. */
export function createEmbedder(settings: Settings) {
  return textEmbedding({
    name: 'embedder',
    // #region model
    model: {
      ...modelOf(settings.modelVersion),
      session: { intraOpNumThreads: settings.modelThreads },
    },
    // #endregion
    batchSize: 32,
    pooling: 'mean',
    maxTokens: 128,
    // A ticket has its topic at the beginning, and may have anything in it.
    tooLong: 'cut',
    specialTokens: 'accept',
    rollout: {
      version: settings.modelVersion,
    },
    // A version gets calls once it has run this.
    warmUp: ['Where is my parcel?'],
    timeout: settings.callTimeout,
    queue: { maxRows: settings.queueMaxRows },
    shutdown: { timeout: settings.shutdownTimeout },
  });
}
