import { createRequire } from 'node:module';
import { tmpdir } from 'node:os';
import { dirname, join } from 'node:path';
import { fileURLToPath } from 'node:url';

export const folder = process.env['PEERS_DIR'] ?? join(tmpdir(), 'peers');

/** The model of the servers of embeddings, as the Hugging Face Hub has it. */
export const miniLm = join(folder, 'all-MiniLM-L6-v2');

/** The model of the writers, with the files that each of them reads. */
export const miniMind = join(folder, 'minimind2-small');

/** A server that answers `POST /predict` or `POST /v1/embeddings`. */
export interface Peer {
  readonly name: string;
  readonly command: readonly string[];
  readonly env?: Readonly<Record<string, string>>;
  /** A row is a list of one row, and so is its reply. */
  readonly takesLists?: boolean;
  /** It has no model, and answers how long the row is. */
  readonly isBare?: boolean;
}

/** The library of onnxruntime-node. */
const libraryOfNode = join(
  dirname(createRequire(import.meta.url).resolve('onnxruntime-node/package.json')),
  `bin/napi-v6/linux/${process.arch}/libonnxruntime.so.1`,
);
const nodeScripts = fileURLToPath(new URL('./node/', import.meta.url));
const pythonScripts = 'test/benchmark/peers/python';
const offline = { HF_HUB_OFFLINE: '1' };

function node(name: string, script: string, rest: Partial<Peer> = {}): Peer {
  return { name, command: [process.execPath, join(nodeScripts, script)], ...rest };
}

function python(name: string, environment: string, script = `${environment}_server.py`): Peer {
  const command = [join(folder, environment, 'bin/python'), join(pythonScripts, script)];
  return { name, command, env: { PYTHONPATH: pythonScripts, ...offline } };
}

/** The servers of rows of numbers. */
export const peers: readonly Peer[] = [
  node('Nest, no model', 'bare.js', { isBare: true }),
  node('Nest + nestjs-serving', 'serving.js'),
  ...['thread', 'none'].map((isolation) =>
    node(`Nest + nestjs-serving, \`isolation: '${isolation}'\``, 'serving.js', {
      env: { ISOLATION: isolation },
    }),
  ),
  node('Nest, a run per request', 'run-per-request.js'),
  node('Nest + a bare thread', 'thread.js'),
  node('Fastify, a run per request', 'fastify.js'),
  node('Fastify + piscina, 2 threads', 'piscina.js'),
  python('FastAPI, batched by hand', 'fastapi'),
  python('LitServe', 'litserve'),
  {
    name: 'BentoML',
    command: [
      join(folder, 'bentoml/bin/bentoml'),
      'serve',
      'bentoml_server:Predictor',
      '--host=127.0.0.1',
      '--port={port}',
      `--working-dir=${pythonScripts}`,
    ],
    env: { BENTOML_DO_NOT_TRACK: 'True', BENTOML_HOME: join(folder, 'bentoml-home') },
    takesLists: true,
  },
  python('Ray Serve', 'ray'),
  {
    name: 'actix-web + batched-fn (Rust)',
    command: [join(folder, 'rust/release/batched-fn-server')],
    env: { ORT_DYLIB_PATH: join(folder, 'libonnxruntime.so') },
  },
];

/** The servers of embeddings. Where one has no batch of its own, each request is a run. */
export const embedders: readonly Peer[] = [
  node('Nest + nestjs-serving', 'embeddings.js'),
  node('Nest + nestjs-serving, `partitions: 2`', 'embeddings.js', { env: { PARTITIONS: '2' } }),
  node('Fastify + transformers.js', 'transformers.js'),
  python(
    'FastAPI + sentence-transformers (ONNX)',
    'sentence-transformers',
    'sentence_transformers_server.py',
  ),
  {
    name: 'Infinity (optimum)',
    command: [
      join(folder, 'infinity/bin/infinity_emb'),
      'v2',
      `--model-id=${miniLm}`,
      '--served-model-name=embedder',
      '--engine=optimum',
      '--device=cpu',
      '--pooling-method=mean',
      // The same texts come again and again.
      '--no-vector-disk-cache',
      '--url-prefix=/v1',
      '--host=127.0.0.1',
      '--port={port}',
      '--log-level=warning',
    ],
    env: { ...offline, INFINITY_ANONYMOUS_USAGE_STATS: '0' },
  },
  {
    name: 'axum + tokenizers + ort (Rust)',
    command: [join(folder, 'rust-embeddings/release/embeddings-server')],
    env: { ORT_DYLIB_PATH: libraryOfNode },
  },
];
