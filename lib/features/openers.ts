import type { Openers } from '../core/partitions/engine.js';
import { openModel } from './onnx/onnx-model.js';
import { openSequences } from './sequences/sequences.js';

/** The features' openers, in the application's thread and in others. */
export const openers: Openers = {
  continuous: { sequences: openSequences },
  models: { onnx: openModel },
};
