import { createRequire } from 'node:module';
import { join } from 'node:path';
import { folder } from '../peers.js';

interface Library {
  readonly env: { allowRemoteModels: boolean; localModelPath: string };
}

/** Loads `@huggingface/transformers` from the folder of peers, with the models of this folder alone. */
export function loadTransformers(models: string): unknown {
  const require = createRequire(join(folder, 'transformers.js', 'package.json'));
  const library = require('@huggingface/transformers') as Library;
  library.env.allowRemoteModels = false;
  library.env.localModelPath = models;
  return library;
}
