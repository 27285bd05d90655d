import { afterAll, afterEach, beforeAll, expect, it } from '@jest/globals';
import { Queue, UnrecoverableError, Worker } from 'bullmq';
import { fork } from 'node:child_process';
import { mkdtemp, rm, writeFile } from 'node:fs/promises';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { setTimeout as delay } from 'node:timers/promises';
import { fileURLToPath } from 'node:url';
import { Redis } from 'ioredis';
import { createServing } from 'nestjs-serving';
import { textEmbedding } from 'nestjs-serving/tasks';
import { Corpus } from '../../../sample/08-corpus-index/src/corpus.js';
import type { Progress } from '../../../sample/08-corpus-index/src/indexing.service.js';
import type { Found } from '../../../sample/08-corpus-index/src/search.service.js';
import { RedisServer, redisMissing } from '../../fixtures/cluster/redis-server.js';
import { describeUnless } from '../../fixtures/describe-unless.js';
import { AppProcess } from '../../fixtures/http/app-process.js';
import { describeInBrowser } from '../../fixtures/http/describe-in-browser.js';
import { freePort } from '../../fixtures/http/free-port.js';
import { silenceLog } from '../../fixtures/silent-log.js';
import { tinyModel } from '../../fixtures/tasks/tiny-models.js';
import { expectToFit } from './expect-to-fit.js';

const built = fileURLToPath(new URL('../../../sample/08-corpus-index/dist', import.meta.url));
const tiny = tinyModel('embedder');
const password = 'the-password-of-the-boards';

/** Enough lines of different lengths that the workers can be killed while they embed them. */
const words = 'the batch of rows waits for a partition and runs once in order'.split(' ');
const corpus = new Corpus(
  Array.from({ length: 12_000 }, (_, line) => {
    const length = 6 + ((line * 7) % 20);
    const text = Array.from({ length }, (__, at) => words[(line * 31 + at * at) % words.length]);
    return `row ${line} ${text.join(' ')}`;
  }),
);

const beyond =
  (lines: number) =>
  ({ indexed, active }: Progress) =>
    indexed >= lines && active > 0;
const ended = ({ waiting, active }: Progress) => waiting + active === 0;

describeUnless(redisMissing, 'The sample of an index of a corpus', () => {
  const processes: AppProcess[] = [];
  let folder: string;
  let redis: RedisServer;
  let client: Redis;
  let queue: Queue;
  let settings: Record<string, string>;

  beforeAll(async () => {
    silenceLog();
    folder = await mkdtemp(join(tmpdir(), 'corpus-'));
    await writeFile(join(folder, 'corpus.txt'), corpus.lines.join('\n'));
    redis = await RedisServer.start();
    settings = {
      REDIS_URL: `redis://127.0.0.1:${redis.port}`,
      CORPUS: join(folder, 'corpus.txt'),
      MODEL: tiny.from,
      BOARD_PASSWORD: password,
      WORKERS: '0',
    };
    client = new Redis(redis.port);
    queue = new Queue('chunks', { connection: { port: redis.port } });
  });

  afterEach(async () => {
    await killAll(processes.splice(0));
    await client.flushall();
  });

  afterAll(async () => {
    await queue.close();
    await client.quit();
    await redis.end();
    await rm(folder, { recursive: true });
  });

  function start(script: 'main' | 'worker', more: Record<string, string> = {}): AppProcess {
    const child = fork(join(built, `${script}.js`), [], {
      env: { ...process.env, ...settings, ...more },
      stdio: ['ignore', 'pipe', 'pipe', 'ipc'],
    });
    const started = new AppProcess(child);
    processes.push(started);
    return started;
  }

  /** Starts the application, and resolves once it answers. */
  async function startApp(more: Record<string, string> = {}) {
    const port = await freePort();
    const app = start('main', { PORT: `${port}`, ...more });
    const url = `http://127.0.0.1:${port}`;
    while (!(await fetch(url).catch(() => undefined))) {
      // Fails with the output if the application has ended.
      await Promise.race([delay(50), app.ended.then(({ output }) => Promise.reject(output))]);
    }
    return { app, url };
  }

  /** All jobs, completed ones too, with their number of failovers and the time of their end. */
  async function jobs() {
    const all = await queue.getJobs(['waiting', 'active', 'delayed', 'completed', 'failed']);
    return all
      .map(({ id, stalledCounter, finishedOn }) => ({ id: id!, stalledCounter, finishedOn }))
      .toSorted((one, other) => one.id.localeCompare(other.id));
  }

  /** Expects one vector for each line, equal to that of the line alone. */
  async function expectAllVectors(): Promise<void> {
    const key = `vectors:${corpus.id}`;
    const lines = (await client.hkeys(key)).map(Number);
    expect(lines.toSorted((one, other) => one - other)).toEqual([...corpus.lines.keys()]);

    const alone = createServing(
      textEmbedding({ name: 'alone', model: tiny, tooLong: 'cut', batchSize: 1 }),
    );
    await alone.start();
    const wrong: number[] = [];
    const different = new Set<string>();
    for (const [line, text] of corpus.lines.entries()) {
      const { vector } = await alone.batchedRun(text);
      const stored = await client.hgetBuffer(key, `${line}`);
      const found = new Float32Array(Uint8Array.from(stored!).buffer);
      if (found.length !== vector.length || distance(found, vector) > 1e-5) {
        wrong.push(line);
      }
      different.add(vector.map((each) => Math.round(each * 1e4)).join());
    }
    await alone.close();
    expect(wrong).toEqual([]);
    // Otherwise a line could have the vector of another.
    expect(different.size).toBe(corpus.lines.length);
  }

  it('[J1] Each line gets its one vector, though workers and the application are killed while they index', async () => {
    const { app, url } = await startApp();
    const workers = [start('worker'), start('worker')];
    await read(`${url}/index`, 'POST');

    await reached(url, beyond(1_000));
    await killAll(workers.splice(0, 1));
    workers.push(start('worker'));
    await reached(url, beyond(3_000));
    await killAll([app, ...workers]);
    const { active } = await queue.getJobCounts('active');
    expect(active).toBeGreaterThan(0);

    const again = await startApp();
    start('worker');
    start('worker');
    expect(await reached(again.url, ended)).toMatchObject({
      lines: corpus.lines.length,
      indexed: corpus.lines.length,
      failed: 0,
    });
    const all = await jobs();
    expect(all).toHaveLength(corpus.chunks.length);
    expect(all.filter(({ stalledCounter }) => stalledCounter > 0).length).toBeGreaterThanOrEqual(
      active!,
    );
    await expectAllVectors();
  });

  it('[J2] A worker finishes its jobs on SIGTERM, another continues, and a second start adds nothing', async () => {
    const { app, url } = await startApp();
    const worker = start('worker');
    await read(`${url}/index`, 'POST');
    await reached(url, beyond(1_000));
    worker.kill('SIGTERM');
    expect(await worker.ended).toMatchObject({ signal: 'SIGTERM' });

    const counts = await queue.getJobCounts('active', 'delayed', 'failed', 'completed');
    const { completed, ...others } = counts;
    const { indexed } = await read<Progress>(`${url}/progress`);
    expect(others).toEqual({ active: 0, delayed: 0, failed: 0 });
    expect(completed).toBeLessThan(corpus.chunks.length);
    expect(indexed).toBe(completed! * corpus.chunks[0]!.lines.length);

    start('worker');
    await reached(url, ended);
    const all = await jobs();
    expect(await read<Progress>(`${url}/index`, 'POST')).toMatchObject({
      indexed: corpus.lines.length,
      waiting: 0,
      active: 0,
    });
    expect(await jobs()).toEqual(all);

    // A kept-alive connection would keep the server for another five seconds.
    const headers = { connection: 'close' };
    const stream = await fetch(`${url}/progress/stream`, { headers });
    let events = '';
    for await (const part of stream.body!.pipeThrough(new TextDecoderStream())) {
      if (events === '' && part.includes(`"indexed":${corpus.lines.length}`)) {
        events = part;
        app.kill('SIGTERM');
      }
    }
    expect(events).not.toBe('');
    expect(await app.ended).toMatchObject({ signal: 'SIGTERM' });
  });

  it('[J2] A second start runs failed jobs again', async () => {
    const { url } = await startApp();
    await read(`${url}/index`, 'POST');
    const failing = new Worker('chunks', fail, { connection: { port: redis.port } });
    await reached(url, ({ failed }) => failed === corpus.chunks.length);
    await failing.close();

    expect(await read<Progress>(`${url}/index`, 'POST')).toMatchObject({
      waiting: corpus.chunks.length,
      failed: 0,
    });
    start('worker');
    expect(await reached(url, ended)).toMatchObject({ indexed: corpus.lines.length, failed: 0 });
  });

  it('[J3] Application and worker end with instructions if no Redis server answers', async () => {
    const address = `127.0.0.1:${await freePort()}`;
    for (const script of ['main', 'worker'] as const) {
      const { code, output } = await start(script, { REDIS_URL: `redis://:secret@${address}` })
        .ended;
      expect(code).toBe(1);
      expect(output).toContain(`No Redis server answers at ${address}: connect ECONNREFUSED`);
      expect(output).toContain('apt-get install redis-server');
      expect(output).not.toContain('secret');
    }
  });

  it('[J3] Both boards ask for the login, and the application does not start without one', async () => {
    const { url } = await startApp();
    const login = Buffer.from(`operator:${password}`).toString('base64');
    for (const board of ['jobs', 'jobs/api/queues', 'servings', 'servings/api']) {
      const signedIn = await fetch(`${url}/boards/${board}`, {
        headers: { authorization: `Basic ${login}` },
      });
      expect({ board, status: signedIn.status }).toEqual({ board, status: 200 });
      const stranger = await fetch(`${url}/boards/${board}`);
      expect({ board, status: stranger.status }).toEqual({ board, status: 401 });
      expect(stranger.headers.get('www-authenticate')).toContain('Basic');
    }

    const { code, output } = await start('main', { BOARD_PASSWORD: '' }).ended;
    expect(code).toBe(1);
    expect(output).toContain('LoginGuard: the password is empty');
  });

  describeInBrowser((openPage) => {
    it('[J4] The page starts the two workers of the application on the corpus, and its bar moves to the end', async () => {
      const { app, url } = await startApp({ WORKERS: '2' });
      const { page, problems } = await openPage(url, { viewport: { width: 1280, height: 800 } });
      await page.getByText(`of ${corpus.lines.length} lines`).waitFor();
      await page.waitForFunction(`document.querySelector('#workers').textContent === '2'`);

      await page.getByRole('button', { name: 'Index the corpus' }).click();
      const bar = "document.querySelector('#bar').position";
      await page.waitForFunction(`${bar} > 0 && ${bar} < 1`);
      await page.getByText('All lines are indexed.').waitFor();
      expect(await page.evaluate(bar)).toBe(1);
      expect(await page.locator('#indexed').textContent()).toBe(`${corpus.lines.length}`);

      await page.getByLabel('Question').fill(corpus.lines[7_000]!);
      await page.locator('#answers li:first-child').getByText(corpus.lines[7_000]!).waitFor();
      const [best] = await read<Found[]>(
        `${url}/search?${new URLSearchParams({ q: corpus.lines[7_000]! }).toString()}`,
      );
      expect(best).toMatchObject({ line: 7_000, score: expect.closeTo(1, 4) });
      expect(problems).toEqual([]);
      await expectToFit(page);
      await page.screenshot({ path: 'test-results/corpus-index.png' });
      await page.close();

      // Its output is closed after the last of its workers has ended.
      await killAll([app]);
      const { output } = await app.ended;
      expect(output.match(/process id \d+ waits/g)).toHaveLength(2);
    });
  });
});

async function killAll(killed: readonly AppProcess[]): Promise<void> {
  for (const each of killed) {
    each.kill('SIGKILL');
  }
  await Promise.all(killed.map((each) => each.ended));
}

/** The first progress of which the condition holds. */
async function reached(url: string, isSo: (progress: Progress) => boolean): Promise<Progress> {
  for (;;) {
    const progress = await read<Progress>(`${url}/progress`);
    if (isSo(progress)) {
      return progress;
    }
    await delay(20);
  }
}

async function read<T>(url: string, method = 'GET'): Promise<T> {
  return (await (await fetch(url, { method })).json()) as T;
}

function fail(): Promise<never> {
  return Promise.reject(new UnrecoverableError('Broken on purpose'));
}

function distance(one: Float32Array, other: Float32Array): number {
  return Math.hypot(...one.map((value, index) => value - other[index]!));
}
