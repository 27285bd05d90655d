import { afterEach, beforeEach, describe, expect, it } from '@jest/globals';
import { existsSync } from 'node:fs';
import { readFile, rm, writeFile } from 'node:fs/promises';
import { dirname, join } from 'node:path';
import { HubRepository } from '../../../lib/extensions/hub/fetch-model.js';
import { parseRepository } from '../../../lib/extensions/hub/remote-model.js';
import { textEmbedding } from '../../../lib/extensions/tasks/index.js';
import { createServing, InvalidServingError, ServingLoadError } from '../../../lib/index.js';
import { answering, HubServer, ModelServer } from '../../fixtures/http/model-server.js';
import { useModelCache } from '../../fixtures/http/use-model-cache.js';
import { silenceLog } from '../../fixtures/silent-log.js';
import { weightsApartModel } from '../../fixtures/models/models.js';

const [first, second] = ['a'.repeat(40), 'b'.repeat(40)];
const fetching = { log: () => {}, warn: () => {}, signal: new AbortController().signal };

function repository(address = 'hf:org/texts'): HubRepository {
  return new HubRepository(parseRepository('Serving "net"', address));
}

async function textOf(own: HubRepository, path: string): Promise<string> {
  return readFile((await own.fetch(path, fetching))!, 'utf8');
}

describe('A repository of the Hub', () => {
  useModelCache();
  let store: ModelServer;
  let hub: HubServer;

  beforeEach(async () => {
    store = await new ModelServer().listen();
    hub = await new HubServer(store).listen();
    commit('config.json', 'one', first);
    commit('tokenizer.json', 'one', first);
    process.env['HF_ENDPOINT'] = hub.origin;
  });

  afterEach(() => Promise.all([hub.close(), store.close()]));

  function commit(path: string, text: string, to: string): void {
    hub.commit('org/texts', 'main', path, Buffer.from(text), to);
  }

  it('[1.11] All files are of the commit of the first one, though the branch moves on', async () => {
    const own = repository();
    expect(await textOf(own, 'config.json')).toBe('one');
    commit('tokenizer.json', 'two', second);
    commit('config.json', 'two', second);

    expect(await textOf(own, 'tokenizer.json')).toBe('one');
    expect(await textOf(repository(), 'tokenizer.json')).toBe('two');
    expect(await textOf(repository(`hf:org/texts@${first}`), 'config.json')).toBe('one');
  });

  it('[1.11] A file that the repository lacks is undefined, also later without a network', async () => {
    const own = repository();
    await own.fetch('config.json', fetching);
    expect(await own.fetch('modules.json', fetching)).toBeUndefined();

    process.env['HF_HUB_OFFLINE'] = '1';
    try {
      const offline = repository();
      expect(await textOf(offline, 'config.json')).toBe('one');
      expect(await offline.fetch('modules.json', fetching)).toBeUndefined();
      await expect(offline.fetch('tokenizer.json', fetching)).rejects.toThrow(
        'Cannot fetch tokenizer.json of hf:org/texts to',
      );
    } finally {
      delete process.env['HF_HUB_OFFLINE'];
    }
  });

  it('[1.11] The weights of a model in a file of their own are fetched with it', async () => {
    const model = weightsApartModel('weights.bin');
    hub.commit('org/texts', 'main', 'onnx/model.onnx', model, first);
    hub.commit('org/texts', 'main', 'onnx/weights.bin', new Uint8Array(8), first);
    const path = await repository().fetch('onnx/model.onnx', fetching);
    expect(existsSync(join(dirname(path!), 'weights.bin'))).toBe(true);
  });

  it('[1.11] Servings that start together fetch a file once', async () => {
    await Promise.all([1, 2, 3].map(() => repository().fetch('config.json', fetching)));
    expect(store.requests).toHaveLength(1);
  });

  it('[1.11] A Hub that fails is an error with the address and the folder', async () => {
    await hub.close();
    const fetch = repository().fetch('config.json', fetching);
    await expect(fetch).rejects.toThrow(ServingLoadError);
    await expect(fetch).rejects.toThrow('Check the address and the network of this machine');
  });

  it.each([
    'hf:org',
    'hf:org/texts/model.onnx',
    'hf:org/texts@',
    'hf:org/..',
    'hf:org/te xts@main',
  ])('[1.11] The address %s is refused', (address) => {
    expect(() => repository(address)).toThrow(InvalidServingError);
    expect(() => repository(address)).toThrow('is no repository of the Hub; give hf:org/repo or');
  });
});

async function start(from: string): Promise<void> {
  const serving = createServing(textEmbedding({ name: 'texts', model: { from } }));
  await serving.start();
  await serving.close();
}

describe('A task with a repository of the Hub', () => {
  const cache = useModelCache();
  const pinned = `hf:org/texts@${first}`;
  let store: ModelServer;
  let hub: HubServer;

  beforeEach(async () => {
    silenceLog();
    store = await new ModelServer().listen();
    hub = await new HubServer(store).listen();
    hub.commitFolder('org/texts', 'test/fixtures/tasks/embedder');
    process.env['HF_ENDPOINT'] = hub.origin;
  });

  afterEach(() => Promise.all([hub.close(), store.close()]));

  it('[1.11] sends no request for a commit in the cache, also for files that the commit lacks', async () => {
    await start(pinned);
    expect(hub.requests).toContain(`HEAD /org/texts/resolve/${first}/added_tokens.json`);
    hub.requests.length = 0;

    await start(pinned);
    expect(hub.requests).toEqual([]);
  });

  it('[1.11] starts from the cache of a branch while the Hub cannot be reached', async () => {
    await start('hf:org/texts');
    await hub.close();
    await start('hf:org/texts');
    await hub.listen();
  });

  it('[1.11] starts if the cache cannot note which files a commit lacks', async () => {
    await start('hf:org/texts');
    const notes = join(cache.folder, 'huggingface/hub/models--org--texts/.no_exist');
    await rm(notes, { recursive: true });
    await writeFile(notes, '');
    await start('hf:org/texts');
  });

  it('[1.11] asks again for a file after a server that had no file of the commit', async () => {
    hub.next.push(answering(404));
    await expect(start(pinned)).rejects.toThrow('has no config.json');
    await start(pinned);
  });
});
