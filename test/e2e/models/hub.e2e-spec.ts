import { inspect } from 'node:util';
import { afterEach, beforeEach, describe, expect, it } from '@jest/globals';
import { mkdir, readFile, readlink, rm, stat, symlink, utimes, writeFile } from 'node:fs/promises';
import { dirname, join } from 'node:path';
import { Test } from '@nestjs/testing';
import {
  defineServing,
  ServingClosedError,
  ServingLoadError,
  ServingModule,
  ServingService,
} from 'nestjs-serving';
import { overrideServing } from 'nestjs-serving/testing';
import { useAppProcesses } from '../../fixtures/http/app-process.js';
import { weightsApartModel } from '../../fixtures/models/models.js';
import {
  answering,
  cutting,
  flipping,
  hanging,
  HubServer,
  ModelServer,
  sha256,
} from '../../fixtures/http/model-server.js';
import { useModelCache } from '../../fixtures/http/use-model-cache.js';
import { useModelApps } from '../../fixtures/serving/use-model-apps.js';

const [first, second] = ['a'.repeat(40), 'b'.repeat(40)];
const onMain = 'hf:org/digits/onnx/model.onnx';
const pinned = `${onMain}@${first}`;
const address = '/org/digits/resolve';

describe('A model on the Hugging Face Hub', () => {
  const cache = useModelCache();
  const create = useModelApps();
  const run = useAppProcesses();
  let digits: Uint8Array;
  let store: ModelServer;
  let hub: HubServer;
  let repo: string;

  beforeEach(async () => {
    digits = await readFile('sample/01-digits/model/digits.onnx');
    store = await new ModelServer().listen();
    hub = await new HubServer(store).listen();
    hub.commit('org/digits', 'main', 'onnx/model.onnx', digits, first);
    process.env['HF_ENDPOINT'] = hub.origin;
    repo = join(cache.folder, 'huggingface/hub/models--org--digits');
  });

  afterEach(() => Promise.all([hub.close(), store.close()]));

  /** Puts the file into the cache as the tools of the Hub do. */
  async function putIntoCache(bytes: Uint8Array, commit: string, branch?: string): Promise<void> {
    const link = join(repo, 'snapshots', commit, 'onnx/model.onnx');
    const blob = join(repo, 'blobs', sha256(digits));
    for (const folder of [dirname(link), dirname(blob), join(repo, 'refs')]) {
      await mkdir(folder, { recursive: true });
    }
    await writeFile(blob, bytes);
    await symlink(`../../../blobs/${sha256(digits)}`, link);
    if (branch) {
      await writeFile(join(repo, 'refs', branch), commit);
    }
  }

  async function failureOf(model: Parameters<typeof create>[0]): Promise<Error> {
    const { app } = await create(model);
    const error = await app.init().then(
      () => new Error('The application started'),
      (reason: unknown) => reason as Error,
    );
    expect(error).toBeInstanceOf(ServingLoadError);
    expect(error.message).toContain(`Serving "digits": Cannot fetch the model ${onMain}`);
    expect(error.message).toContain(join(cache.folder, 'huggingface/hub'));
    return error;
  }

  async function filesOfCache(): Promise<string[]> {
    const files = await cache.files();
    const stats = await Promise.all(files.map((file) => stat(join(cache.folder, file))));
    return files.filter((_, i) => stats[i]!.isFile());
  }

  it('[1.10] The model is fetched at boot to the cache of the tools of the Hub, and answers', async () => {
    const { app, probabilities, lines } = await create(onMain);
    await app.init();

    expect(await probabilities()).toMatchObject({ dims: [1, 10] });
    expect(hub.requests).toEqual([
      `HEAD ${address}/main/onnx/model.onnx`,
      `GET ${address}/${first}/onnx/model.onnx`,
    ]);
    expect(store.requests).toEqual([`GET /${sha256(digits)}`]);
    expect(await filesOfCache()).toEqual(
      [`blobs/${sha256(digits)}`, 'refs/main', `snapshots/${first}/onnx/model.onnx`].map(
        (file) => `huggingface/hub/models--org--digits/${file}`,
      ),
    );
    expect(await readFile(join(repo, 'refs/main'), 'utf8')).toBe(first);
    expect(await readlink(join(repo, 'snapshots', first, 'onnx/model.onnx'))).toBe(
      `../../../blobs/${sha256(digits)}`,
    );
    expect(lines).toEqual([
      `Serving "digits" downloads ${onMain} (407 kB)`,
      `Serving "digits" has ${onMain} of commit ${first} in ${repo}`,
      expect.stringMatching(/^Serving "digits" is ready: /),
    ]);
  });

  it.each<[string, Parameters<typeof create>[0]]>([
    ['a commit', pinned],
    ['a SHA-256', { file: onMain, sha256: '' }],
  ])(
    '[1.10] A model pinned to %s is fetched once, and no request is sent after that',
    async (_, model) => {
      const own = typeof model === 'string' ? model : { file: onMain, sha256: sha256(digits) };
      await (await create(own)).app.init();
      await Promise.all([hub.close(), store.close()]);

      const again = await create(own);
      await again.app.init();
      expect(await again.probabilities()).toMatchObject({ dims: [1, 10] });
    },
  );

  it('[1.10] A model that other tools of the Hub have fetched is used without a request', async () => {
    await putIntoCache(digits, first);
    await (await create(pinned)).app.init();

    expect(hub.requests).toEqual([]);
  });

  it('[1.10] A branch is asked for at each boot, and its new file is fetched', async () => {
    await (await create(onMain)).app.init();
    await (await create(onMain)).app.init();
    expect(store.requests).toHaveLength(1);

    const changed = Buffer.concat([digits, Buffer.from([0x12, 0])]); // an empty producer_name
    hub.commit('org/digits', 'main', 'onnx/model.onnx', changed, second);
    await (await create(onMain)).app.init();

    expect(store.requests).toEqual([`GET /${sha256(digits)}`, `GET /${sha256(changed)}`]);
    expect(await readFile(join(repo, 'refs/main'), 'utf8')).toBe(second);
  });

  it('[1.10] A new commit with the same file fetches nothing', async () => {
    await (await create(onMain)).app.init();
    hub.commit('org/digits', 'main', 'onnx/model.onnx', digits, second);
    await (await create(onMain)).app.init();

    expect(store.requests).toHaveLength(1);
    expect(await readlink(join(repo, 'snapshots', second, 'onnx/model.onnx'))).toBe(
      `../../../blobs/${sha256(digits)}`,
    );
  });

  it('[1.10] The file of a branch that was fetched before is used while the Hub cannot be reached, and the log has the reason', async () => {
    await (await create(onMain)).app.init();
    await hub.close();
    const { app, lines, probabilities } = await create(onMain);
    await app.init();

    expect(await probabilities()).toMatchObject({ dims: [1, 10] });
    expect(lines).toContainEqual(
      expect.stringMatching(
        /uses hf:.* as it was fetched before, since http.* cannot be reached: .*ECONNREFUSED/,
      ),
    );
  });

  it('[1.10] With HF_HUB_OFFLINE the cache is used, and no request is sent', async () => {
    await putIntoCache(digits, first, 'main');
    process.env['HF_HUB_OFFLINE'] = '1';
    await (await create(onMain)).app.init();

    expect(hub.requests).toEqual([]);
  });

  it('[1.10] With HF_HUB_OFFLINE and without the file, the boot fails with the folder and the remedy', async () => {
    process.env['HF_HUB_OFFLINE'] = '1';
    const { message } = await failureOf(onMain);

    expect(message).toContain(
      'the cache does not have onnx/model.onnx, and HF_HUB_OFFLINE forbids',
    );
    expect(hub.requests).toEqual([]);
  });

  it('[1.10] Without the Hub and without the file, the boot fails with address, folder, cause and remedy', async () => {
    await hub.close();
    const { message } = await failureOf(onMain);

    expect(message).toMatch(/http:\S+ cannot be reached: .*ECONNREFUSED/);
    expect(message).toContain('Check the address and the network');
  });

  it.each([
    ['HF_HUB_CACHE', ''],
    ['HF_HOME', 'hub'],
  ])('[1.10] %s chooses the cache folder', async (name, inner) => {
    process.env[name] = join(cache.folder, 'own');
    await (await create(pinned)).app.init();

    expect(await cache.files()).toContain(
      join('own', inner, 'models--org--digits/blobs', sha256(digits)),
    );
  });

  it('[1.10] The token is sent to the Hub and not to the server that it redirects to', async () => {
    process.env['HF_TOKEN'] = 'secret\n';
    await (await create(onMain)).app.init();

    expect(hub.tokens).toEqual(['Bearer secret', 'Bearer secret']);
    expect(store.tokens).toEqual([undefined]);
  });

  it('[X2] A token of two lines is in no error, and sent nowhere', async () => {
    process.env['HF_TOKEN'] = 'hf_SECRET\nsecond';
    const error = await failureOf(onMain);

    expect(error.message).toContain('HF_TOKEN is not a token');
    expect(inspect(error, { depth: 20 })).not.toContain('SECRET');
    expect(hub.requests).toEqual([]);
  });

  it('[1.10] A repository that was renamed is found at its new address, with the token', async () => {
    process.env['HF_TOKEN'] = 'secret';
    hub.next.push(answering(307, { location: `${address}/main/onnx/model.onnx` }));
    await (await create('hf:org/old-name/onnx/model.onnx')).app.init().catch(() => {});

    expect(hub.requests.slice(0, 2)).toEqual([
      'HEAD /org/old-name/resolve/main/onnx/model.onnx',
      `HEAD ${address}/main/onnx/model.onnx`,
    ]);
    expect(hub.tokens.slice(0, 2)).toEqual(['Bearer secret', 'Bearer secret']);
  });

  it('[1.10] Weights in another file are fetched beside the model, from the same commit', async () => {
    const model = weightsApartModel('model.onnx_data');
    const weights = new Uint8Array(Float32Array.of(1, 2).buffer);
    hub.commit('org/digits', 'main', 'onnx/model.onnx', model, first);
    hub.commit('org/digits', 'main', 'onnx/model.onnx_data', weights, first);
    const { app } = await create(onMain);
    await app.init();

    expect(await filesOfCache()).toContain(
      `huggingface/hub/models--org--digits/snapshots/${first}/onnx/model.onnx_data`,
    );
    expect(hub.requests).toContain(`GET ${address}/${first}/onnx/model.onnx_data`);
  });

  it('[1.10] A model that refers to a file outside of its folder is refused', async () => {
    hub.commit('org/digits', 'main', 'onnx/model.onnx', weightsApartModel('../../secret'), first);

    expect((await failureOf(onMain)).message).toContain(
      'it refers to the file ../../secret outside of its own folder',
    );
    expect(hub.requests).toHaveLength(2);
  });

  it('[1.10] A test that overrides the serving fetches nothing', async () => {
    const digitsServing = defineServing({ name: 'digits', model: onMain });
    const builder = Test.createTestingModule({
      imports: [ServingModule.forRoot({ servings: [digitsServing] })],
    });
    const testing = await overrideServing(builder, digitsServing)
      .useFunction((rows) => rows.map(() => 7))
      .compile();
    await testing.init();

    expect(await testing.get(ServingService).batchedRun('digits', 'a')).toBe(7);
    expect(hub.requests).toEqual([]);
    await testing.close();
  });

  it('[1.10] Two servings with the same model fetch it once', async () => {
    const { app, probabilities } = await create({ one: onMain, two: onMain });
    await app.init();

    expect(store.requests).toHaveLength(1);
    expect(await probabilities('one')).toEqual(await probabilities('two'));
  });

  it('[1.10] Two processes that fetch the same model at once both answer', async () => {
    const [one, two] = [hanging(digits), hanging(digits)];
    store.next.push(one.answer, two.answer);
    const env = [`XDG_CACHE_HOME=${cache.folder}`, `HF_ENDPOINT=${hub.origin}`];
    const processes = [1, 2].map(() => run('fetched-model', { model: onMain }, ['env', ...env]));
    await Promise.all([one.begun, two.begun]);
    store.closeConnections();

    for (const each of processes) {
      expect(await each.messages('reply')).toEqual([[1, 10]]);
      expect(await each.ended).toMatchObject({ code: 0, output: '' });
    }
    const files = (await filesOfCache()).filter((file) => file.startsWith('huggingface'));
    expect(files).toHaveLength(3);
  });

  it.each([
    ['the connection is cut in the middle', () => cutting(digits)],
    ['the server is overloaded', () => answering(503)],
    ['there are too many requests', () => answering(429)],
  ])('[1.10] The download is tried again when %s', async (_, answer) => {
    store.next.push(answer());
    const { app, lines } = await create(onMain);
    await app.init();

    expect(store.requests).toHaveLength(2);
    expect((await filesOfCache()).some((file) => file.includes('incomplete'))).toBe(false);
    expect(lines).toContainEqual(
      expect.stringMatching(/^Serving "digits" waits for its model: .*; attempt 2 of 4 in 500 ms$/),
    );
  });

  it('[1.10] A server that stays overloaded fails the boot after four attempts', async () => {
    hub.next.push(...Array.from({ length: 4 }, () => answering(500)));

    expect((await failureOf(onMain)).message).toContain(`${hub.origin} answered 500`);
    expect(hub.requests).toHaveLength(4);
  });

  it('[1.10] A file with a flipped bit is deleted, and the boot fails with both hashes', async () => {
    store.next.push(flipping(digits));
    const { message } = await failureOf(onMain);

    expect(message).toMatch(
      new RegExp(`arrived with the SHA-256 [\\da-f]{64}, and the Hub says ${sha256(digits)}`),
    );
    expect(await filesOfCache()).toEqual([]);
  });

  it('[1.10] A file of the cache with a flipped bit is fetched again', async () => {
    const flipped = Uint8Array.from(digits);
    flipped[1000]! ^= 1;
    await putIntoCache(flipped, first);
    const { app, lines } = await create(pinned);
    await app.init();

    expect(store.requests).toHaveLength(1);
    expect(Buffer.from(digits).equals(await readFile(join(repo, 'blobs', sha256(digits))))).toBe(
      true,
    );
    expect(lines[0]).toContain(`which was damaged: its SHA-256 is ${sha256(flipped)}`);
  });

  it('[1.10] Another file than the pinned one is not fetched, and the boot fails with both hashes', async () => {
    const pin = '0'.repeat(64);
    const { message } = await failureOf({ file: onMain, sha256: pin });

    expect(message).toContain(
      `onnx/model.onnx has the SHA-256 ${sha256(digits)} at commit ${first}, and the definition says ${pin}`,
    );
    expect(store.requests).toEqual([]);
    expect(await cache.files()).toEqual([]);
  });

  it.each<[number, string | undefined, string | undefined, string]>([
    [401, undefined, undefined, 'check the name, and set HF_TOKEN to a token that may read it'],
    [401, undefined, 'old', 'check the name, and give HF_TOKEN a valid token that may read it'],
    [403, 'GatedRepo', 'mine', 'accept its terms at http'],
    [404, 'RepoNotFound', undefined, 'there is no repository org/digits'],
    [404, 'RevisionNotFound', undefined, 'has no branch, tag or commit "main"'],
    [404, 'EntryNotFound', undefined, 'has no file "onnx/model.onnx" at "main"'],
    [410, undefined, undefined, 'the request was refused'],
  ])(
    '[1.10] The boot fails with a remedy for status %d %s',
    async (status, code, token, remedy) => {
      if (token) {
        process.env['HF_TOKEN'] = token;
      }
      hub.next.push(answering(status, code ? { 'x-error-code': code } : {}));
      const { message } = await failureOf(onMain);

      expect(message).toContain(`${hub.origin} answered ${status}`);
      expect(message).toContain(remedy);
      expect(message).not.toContain('mine');
      expect(hub.requests).toHaveLength(1);
    },
  );

  it('[1.10] An endpoint that is no Hub is named', async () => {
    hub.next.push(answering(200));

    expect((await failureOf(onMain)).message).toContain('check HF_ENDPOINT');
  });

  it('[1.10] [9.3] Closing the application ends the download and leaves no file', async () => {
    const { answer, begun } = hanging(digits);
    store.next.push(answer);
    const { app } = await create(onMain);
    const starting = app.init();
    const failing = expect(starting).rejects.toThrow(ServingClosedError);
    await begun;
    await app.close();

    await failing;
    await expect(starting).rejects.toThrow('Serving "digits" was closed before it had its model');
    expect(await filesOfCache()).toEqual([]);
  });

  it('[1.10] Closing one application leaves the download to another that waits for it', async () => {
    const { answer, begun } = hanging(digits);
    store.next.push(answer);
    const [closing, staying] = [await create(onMain), await create(onMain)];
    const failing = expect(closing.app.init()).rejects.toThrow(ServingClosedError);
    const starting = staying.app.init();
    await begun;
    await closing.app.close();
    await failing;
    store.closeConnections();

    await starting;
    expect(await staying.probabilities()).toMatchObject({ dims: [1, 10] });
    expect(store.requests).toHaveLength(2);
  });

  it('[1.10] The part of a file that a killed process left is deleted by the next download, and one that is written to is not', async () => {
    const blobs = join(repo, 'blobs');
    await mkdir(blobs, { recursive: true });
    const [old, young] = ['1', '2'].map((digit) =>
      join(blobs, `x.${digit.repeat(8)}-1111-1111-1111-111111111111.incomplete`),
    ) as [string, string];
    await writeFile(old, 'part');
    await writeFile(young, 'part');
    const past = Date.now() / 1000 - 7200;
    await utimes(old, past, past);
    await (await create(onMain)).app.init();

    await expect(stat(old)).rejects.toThrow('ENOENT');
    await stat(young);
    await rm(young);
  });
});
