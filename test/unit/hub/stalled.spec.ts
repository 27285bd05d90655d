import { afterEach, beforeEach, expect, it, jest } from '@jest/globals';
import { readdirSync, statSync } from 'node:fs';
import { mkdtemp, readdir, rm } from 'node:fs/promises';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { save, send } from '../../../lib/extensions/hub/download.js';
import { until } from '../../fixtures/async/awaited.js';
import { ModelServer } from '../../fixtures/http/model-server.js';

let folder: string;

beforeEach(async () => {
  folder = await mkdtemp(join(tmpdir(), 'save-'));
  jest.useFakeTimers({ doNotFake: ['nextTick', 'setImmediate', 'queueMicrotask'] });
});
afterEach(async () => {
  jest.useRealTimers();
  await rm(folder, { recursive: true });
});

function written(): number {
  return readdirSync(folder).reduce((sum, file) => sum + statSync(join(folder, file)).size, 0);
}

it('[1.10] A connection without a byte for 30 s counts as broken, and one that is slow does not', async () => {
  let sender!: ReadableStreamDefaultController;
  const body = new ReadableStream({ start: (controller) => void (sender = controller) });
  const outcome = save(new Response(body), {
    name: 'model.onnx',
    path: join(folder, 'model.onnx'),
    cacheAdvice: 'XDG_CACHE_HOME',
    log: () => {},
    signal: new AbortController().signal,
  }).catch((error: unknown) => error);
  for (let i = 1; i <= 3; i++) {
    sender.enqueue(new Uint8Array(10));
    await until(() => written() === 10 * i);
    jest.advanceTimersByTime(29_000);
  }
  jest.advanceTimersByTime(1000);

  expect(await outcome).toMatchObject({
    name: 'TransientError',
    message: 'The connection broke after 30 bytes: no byte came for 30 s',
  });
  expect(await readdir(folder)).toEqual([]);
});

it('[1.10] A server that does not answer for 30 s counts as unreachable', async () => {
  const server = await new ModelServer().listen();
  server.next.push(() => true);
  const outcome = send({
    url: `${server.origin}/model.onnx`,
    method: 'GET',
    allowsHttp: true,
    signal: new AbortController().signal,
  }).catch((error: unknown) => error);
  await until(() => server.requests.length > 0);
  jest.advanceTimersByTime(30_000);

  expect(await outcome).toMatchObject({
    name: 'TransientError',
    message: `${server.origin} cannot be reached: no answer came for 30 s`,
  });
  await server.close();
});

it('[X3] A download ends as soon as it is larger than its stated size, and leaves nothing', async () => {
  let sent = 0;
  const endless = new ReadableStream({
    pull: (controller) => {
      sent += 65_536;
      controller.enqueue(new Uint8Array(65_536));
    },
  });
  const outcome = save(new Response(endless), {
    name: 'model.onnx',
    path: join(folder, 'model.onnx'),
    cacheAdvice: 'XDG_CACHE_HOME',
    size: 88,
    log: () => {},
    signal: new AbortController().signal,
  }).catch((error: unknown) => error);

  expect(await outcome).toMatchObject({
    name: 'ServingLoadError',
    message: expect.stringContaining('larger than the 88 bytes that its server states'),
  });
  expect(sent).toBeLessThan(1e6);
  expect(await readdir(folder)).toEqual([]);
});
