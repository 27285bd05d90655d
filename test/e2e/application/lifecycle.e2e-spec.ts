import { afterAll, beforeAll, beforeEach, describe, expect, it } from '@jest/globals';
import { Injectable } from '@nestjs/common';
import { Batched, asCaller, ServingModule, ServingService } from 'nestjs-serving';
import { mkdtemp, readFile, rm, writeFile } from 'node:fs/promises';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { useAppProcesses } from '../../fixtures/http/app-process.js';
import { linearModel, slowModel } from '../../fixtures/models/models.js';
import { describeOnPlatforms } from '../../fixtures/partitions/platforms.js';

const byItself = { code: 0, signal: null, output: '' };
const bySignal = { ...byItself, code: null, signal: 'SIGTERM' };

const run = useAppProcesses();
let folder: string;
let model: string;
let slow: string;
let diary: string;

beforeAll(async () => {
  folder = await mkdtemp(join(tmpdir(), 'serving-'));
  model = join(folder, 'linear.onnx');
  slow = join(folder, 'slow.onnx');
  await Promise.all([writeFile(model, linearModel('batch')), writeFile(slow, slowModel(200))]);
});

beforeEach(() => {
  diary = join(folder, `${expect.getState().currentTestName!.replaceAll(/\W/g, '-')}.txt`);
});

afterAll(() => rm(folder, { recursive: true }));

const threads = async () => (await readFile(diary, 'utf8')).trim().split('\n');

/** Starts an application and returns a function that calls it. */
async function serve(options: object) {
  const app = run('http', { platform: 'express', ending: 'close', diary, ...options });
  const [url] = await app.messages<string>('listening');
  const call = async (text: string, serving = 'held') => {
    const response = await fetch(`${url}/${serving}/${text}`);
    return { status: response.status, body: await response.text() };
  };
  return { app, call };
}

describe('An application that receives SIGTERM', () => {
  it.each<[string, string, object]>([
    ['express', 'close', byItself],
    ['express', 'hooks', bySignal],
    ['express', 'exit', byItself],
    ['fastify', 'close', byItself],
    ['fastify', 'hooks', bySignal],
    ['fastify', 'exit', byItself],
  ])(
    '[9.3] Accepted calls are answered at shutdown, on %s by %s',
    async (platform, ending, end) => {
      const { app, call } = await serve({ platform, ending });
      const texts = Array.from({ length: 100 }, (_, i) => `text${i}`);

      const replies = Promise.all(texts.map((text) => call(text)));
      await app.messages('accepted', texts.length);
      app.kill('SIGTERM');
      await app.messages('closing');
      app.send('open');

      expect(await replies).toEqual(
        texts.map((text) => ({ status: 200, body: text.toUpperCase() })),
      );
      expect(await app.ended).toEqual(end);
      expect(await threads()).toEqual(['started', 'started', 'ended', 'ended']);
    },
  );

  it.each(['express', 'fastify'])(
    '[9.3] Calls that are accepted during shutdown are answered while clients go on calling, on %s',
    async (platform) => {
      const { app, call } = await serve({ platform });
      app.send('open');
      const answered: string[] = [];
      const callForEver = async (client: number) => {
        for (let i = 0; ; i++) {
          const reply = await call(`${client}-${i}`, i % 2 ? 'held' : 'threads').catch(
            () => undefined,
          );
          if (reply === undefined) {
            return;
          }
          if (reply.status === 200) {
            answered.push(reply.body);
          }
        }
      };

      const clients = Promise.all(Array.from({ length: 20 }, (_, client) => callForEver(client)));
      await app.messages('accepted', 200);
      app.kill('SIGTERM');
      await clients;

      expect(await app.ended).toEqual(byItself);
      expect(answered.toSorted()).toEqual((await app.all<string>('accepted')).toSorted());
    },
  );

  it.each<[string, object, string, object]>([
    [
      'Without draining, queued calls get the closed error and running ones their results',
      { shutdown: { drain: false } },
      '',
      { status: 200, body: 'RUNNING' },
    ],
    [
      'At the shutdown limit every call gets the closed error',
      { shutdown: { timeout: 1 } },
      'did not finish within 1 ms of shutdown',
      { status: 503, body: '{"statusCode":503,"message":"Service Unavailable"}' },
    ],
  ])('[9.3] [H1] %s', async (_, options, warning, ofRunning) => {
    const { app, call } = await serve({ batchSize: 1, ...options });

    const running = call('running');
    await app.messages('running');
    const queued = Promise.all(['a', 'b', 'c'].map((text) => call(text)));
    await app.messages('accepted', 4);
    app.kill('SIGTERM');

    expect(await queued).toEqual(
      Array.from({ length: 3 }, () => ({
        status: 503,
        body: '{"statusCode":503,"message":"Service Unavailable"}',
      })),
    );
    app.send('open');
    expect(await running).toEqual(ofRunning);
    expect(await app.ended).toEqual({ ...byItself, output: expect.stringContaining(warning) });
    expect(await app.all('running')).toEqual([['running']]);
  });

  it.each<[string, object]>([
    ['close', byItself],
    ['hooks', bySignal],
    ['exit', byItself],
  ])('[5.3] [9.3] Shutdown waits for a thread that runs a model, by %s', async (ending, end) => {
    const app = run('model', { model: slow, ending });

    expect(await app.messages('reply')).toEqual([{ dims: [128, 512], intact: true }]);
    expect(await app.ended).toEqual(end);
  });
});

describe('A process', () => {
  it.each(['before', 'meanwhile'])(
    '[9.1] A process ends by itself after a failed boot that it handles, with servings loaded %s',
    async (order) => {
      const app = run('boot', { diary, model, order, handled: true });

      expect(await app.messages('failed')).toEqual([
        expect.stringMatching(/^Serving "wrong": Cannot load the model \S+boot\.mjs: /),
      ]);
      expect(await app.ended).toEqual({ ...byItself, code: 3 });
    },
  );

  it.each(['before', 'meanwhile'])(
    '[5.3] [9.1] A process ends with the reason of a failed boot, with servings loaded %s',
    async (order) => {
      const app = run('boot', { diary, model: slow, order });

      const reason = expect.stringMatching(
        /ServingLoadError: Serving "wrong": Cannot load the model \S+boot\.mjs: /,
      );
      expect(await app.ended).toEqual({ code: 1, signal: null, output: reason });
    },
  );

  it('[9.3] A process with idle servings ends by itself', async () => {
    const app = run('idle', { diary, model });

    expect(await app.messages('replies')).toEqual([['text', [2, 2]]]);
    expect(await app.ended).toEqual(byItself);
  });
});

describeOnPlatforms('An application that closes', (listen) => {
  it('[9.3] Batched methods are drained before the servings that they call', async () => {
    @Injectable()
    class Asker {
      constructor(private readonly servings: ServingService) {}

      @Batched({ batchSize: 2, batchTimeout: 1_000_000 })
      ask(texts: string[]): Promise<string[]> {
        return Promise.all(
          texts.map((text) => this.servings.batchedRun<string, string>('echo', text)),
        );
      }
    }
    const servings = [{ name: 'echo', model: { useFactory: () => (rows: string[]) => rows } }];
    const { app } = await listen({
      imports: [ServingModule.forRoot({ servings })],
      providers: [Asker],
    });

    const queued = asCaller(app.get(Asker)).ask('text');
    await app.close();

    expect(await queued).toBe('text');
  });
});
