import { type ChildProcess, fork } from 'node:child_process';
import { once } from 'node:events';
import { setTimeout as sleep } from 'node:timers/promises';
import { fileURLToPath } from 'node:url';
import { afterAll, beforeAll, describe, expect, it } from '@jest/globals';
import { freePort } from '../../fixtures/http/free-port.js';

interface Pids {
  readonly webs: readonly number[];
  readonly models: readonly number[];
}

const script = fileURLToPath(
  new URL('../../benchmark/dist/benchmark/scale/start.js', import.meta.url),
);
const body = JSON.stringify({ image: Array.from({ length: 784 }, (_, index) => (index % 7) / 7) });

describe('Web processes that share a model process', () => {
  let primary: ChildProcess;
  let port: number;

  /** On a connection of its own, so that each web process has its turn. */
  async function classify(): Promise<{ status: number; text: string }> {
    const response = await fetch(`http://127.0.0.1:${port}/digits`, {
      method: 'POST',
      headers: { 'content-type': 'application/json', connection: 'close' },
      body,
    });
    return { status: response.status, text: await response.text() };
  }

  async function pids(): Promise<Pids> {
    const answer = once(primary, 'message');
    primary.send('pids');
    return (await answer)[0] as Pids;
  }

  async function start(): Promise<void> {
    port = await freePort();
    const env = { WEB_PROCESSES: '2', WEB_PORT: `${port}`, MODEL_PORT: `${await freePort()}` };
    primary = fork(script, { env: { ...process.env, ...env } });
    const answers = until(
      () => classify().catch(() => undefined),
      (reply) => reply?.status === 200,
    );
    const end = once(primary, 'exit').then(([code]) => {
      throw new Error(`The primary process ended with ${code}; npm run build:bench compiles it`);
    });
    await Promise.race([answers, end]);
  }

  beforeAll(start);

  afterAll(() => void primary.kill('SIGKILL'));

  it('all answer with the output of the one model', async () => {
    const replies = await Promise.all(Array.from({ length: 64 }, classify));
    const outputs = replies.map(({ text }) => JSON.parse(text) as number[]);
    const [probabilities = []] = outputs;
    expect(probabilities.reduce((sum, value) => sum + value, 0)).toBeCloseTo(1, 5);
    const alike: unknown[] = probabilities.map((value) => expect.closeTo(value, 5));
    expect(alike).toHaveLength(10);
    expect(outputs).toEqual(outputs.map(() => alike));
    expect(new Set(replies.map(({ status }) => status))).toEqual(new Set([200]));
  });

  it('are started again when one is killed, while the others answer', async () => {
    const { webs } = await pids();
    process.kill(webs[0]!, 'SIGKILL');
    await until(pids, (now) => !now.webs.includes(webs[0]!));
    const replies = [await classify(), await classify()];
    expect(replies.map(({ status }) => status)).toEqual([200, 200]);
    const { webs: later } = await until(pids, (now) => now.webs.length === 2);
    expect(later).toContain(webs[1]);
  });

  it.each([
    ['is killed', 'SIGKILL'],
    ['shuts down', 'SIGTERM'],
  ] as const)(
    'answer every call while the model process %s and starts again',
    async (_, signal) => {
      const statuses: number[] = [];
      const over = new AbortController();
      const callers = Array.from({ length: 16 }, async () => {
        while (!over.signal.aborted) {
          statuses.push((await classify()).status);
        }
      });
      const answered = async (): Promise<number> => statuses.length;
      await until(answered, (count) => count > 100);
      const { models } = await pids();
      process.kill(models[0]!, signal);
      await until(pids, (now) => now.models.length === 1 && now.models[0] !== models[0]);
      const before = statuses.length;
      await until(answered, (count) => count > before + 100);
      over.abort();
      await Promise.all(callers);
      expect(new Set(statuses)).toEqual(new Set([200]));
    },
  );

  it('all end when the primary process shuts down', async () => {
    const { webs, models } = await pids();
    const exit = once(primary, 'exit');
    primary.kill('SIGTERM');
    expect(await exit).toEqual([0, null]);
    expect([...webs, ...models].filter(isRunning)).toEqual([]);
  });

  it('all end when the primary process is killed', async () => {
    await start();
    const { webs, models } = await pids();
    primary.kill('SIGKILL');
    const running = async (): Promise<number[]> => [...webs, ...models].filter(isRunning);
    expect(await until(running, (left) => left.length === 0)).toEqual([]);
  });
});

function isRunning(pid: number): boolean {
  try {
    return process.kill(pid, 0);
  } catch {
    return false;
  }
}

async function until<Value>(what: () => Promise<Value>, holds: (value: Value) => boolean) {
  for (;;) {
    const value = await what();
    if (holds(value)) {
      return value;
    }
    await sleep(50);
  }
}
