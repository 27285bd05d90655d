// #region imports
import { defineServing } from 'nestjs-serving';
// #endregion
import { afterEach, beforeEach, describe, expect, it } from '@jest/globals';
import { readFile } from 'node:fs/promises';
import { HubServer, ModelServer, sha256 } from '../../fixtures/http/model-server.js';
import { useModelCache } from '../../fixtures/http/use-model-cache.js';
import { useModelApps } from '../../fixtures/serving/use-model-apps.js';

// #region hub
export const digits = defineServing({
  name: 'digits',
  model: 'hf:my-org/digits/onnx/model.onnx@5b0a5c3c2b0c6f0e4f3e1d2c9b8a7f6e5d4c3b2a',
});
// #endregion

// #region web
export const reader = defineServing({
  name: 'reader',
  model: {
    file: 'https://models.example.com/digits.onnx',
    sha256: 'efe165aa5887fdb87bca237659f761d8339efa730a5ff1c627d5f26fea5c0c45',
  },
});
// #endregion

const readObject = (bucket: string, key: string, _options: { signal: AbortSignal }) =>
  readFile(`sample/01-${key.replace('.onnx', '')}/model/${key}`).then((bytes) => {
    expect(bucket).toBe('models');
    return bytes;
  });

// #region fetch
export const stored = defineServing({
  name: 'digits',
  model: {
    file: {
      name: 's3://models/digits.onnx', // In logs and errors.
      fetch: async ({ log, signal }) => {
        log('fetches s3://models/digits.onnx');
        return readObject('models', 'digits.onnx', { signal }); // Its bytes, or the path of a file.
      },
    },
  },
});
// #endregion

describe('The manual on models', () => {
  useModelCache();
  const create = useModelApps();
  let store: ModelServer;
  let hub: HubServer;
  let bytes: Uint8Array;

  beforeEach(async () => {
    bytes = await readFile('sample/01-digits/model/digits.onnx');
    store = await new ModelServer().listen();
    hub = await new HubServer(store).listen();
    process.env['HF_ENDPOINT'] = hub.origin;
  });

  afterEach(() => Promise.all([hub.close(), store.close()]));

  it("[1.10] The manual's model of the Hub answers", async () => {
    const commit = '5b0a5c3c2b0c6f0e4f3e1d2c9b8a7f6e5d4c3b2a';
    hub.commit('my-org/digits', 'main', 'onnx/model.onnx', bytes, commit);
    const { app, probabilities } = await create(modelOf(digits));
    await app.init();

    expect(await probabilities()).toMatchObject({ dims: [1, 10] });
  });

  it("[1.11] The manual's model that code fetches answers", async () => {
    const { app, probabilities, lines } = await create(modelOf(stored));
    await app.init();

    expect(await probabilities()).toMatchObject({ dims: [1, 10] });
    expect(lines).toContain('Serving "digits" fetches s3://models/digits.onnx');
  });

  it("[1.10] The manual's model of a web server answers", async () => {
    store.add('/digits.onnx', bytes);
    const { file, sha256: hash } = modelOf(reader) as { file: string; sha256: string };
    expect(hash).toBe(sha256(bytes));
    const { app, probabilities } = await create({
      file: file.replace('https://models.example.com', store.origin),
      sha256: hash,
    });
    await app.init();

    expect(await probabilities()).toMatchObject({ dims: [1, 10] });
  });
});

function modelOf(definition: object): Parameters<ReturnType<typeof useModelApps>>[0] {
  return (definition as { model: Parameters<ReturnType<typeof useModelApps>>[0] }).model;
}
