import { afterAll, afterEach, beforeAll, expect, it } from '@jest/globals';
import {
  BatchFailedError,
  DeadlineExceededError,
  type LocalServing,
  PartitionLostError,
  ServingLoadError,
  ServingUnavailableError,
  Tensor,
} from 'nestjs-serving';
import { endpoint, type Endpoints } from 'nestjs-serving/inference-protocol';
import { describeUnless } from '../../fixtures/describe-unless.js';
import { failureOf } from '../../fixtures/async/failure-of.js';
import { until } from '../../fixtures/async/awaited.js';
import { missingServer, ModelServer } from '../../fixtures/endpoints/model-servers.js';
import { useServings } from '../../fixtures/serving/use-servings.js';

type Reply = Record<'y' | 'batch', Tensor>;

/** What the first element of a row means to the model. */
const [FAIL, WAIT, EXIT] = [-1, -2, -3];

const rowOf = (first: number) => ({ x: new Tensor('float32', [first, 1, 2, 3], [1, 4]) });

const call = async (
  serving: LocalServing<unknown, Reply>,
  first: number,
  options?: object,
): Promise<number> => {
  const { y } = await serving.batchedRun(rowOf(first), options);
  expect([...(y.data as Float32Array)]).toEqual([2 * first, 2, 4, 6]);
  return y.data[0] as number;
};

describeUnless(missingServer('mlserver'), 'MLServer as an endpoint', () => {
  const start = useServings();
  let server: ModelServer;
  let other: ModelServer;

  beforeAll(async () => {
    [server, other] = await Promise.all([ModelServer.mlserver(), ModelServer.mlserver()]);
  });
  // A test may have killed a server.
  afterEach(() => Promise.all([server.revive(), other.revive()]));
  afterAll(() => Promise.all([server.close(), other.close()]));

  const serve = (
    options: object = {},
    servers: Endpoints = server.url,
    model?: string,
  ): Promise<LocalServing<unknown, Reply>> =>
    start<Reply>({ name: 'double', model: endpoint(servers, model), ...options });
  it('[19.1] gives each of many concurrent callers its own rows, in few batches', async () => {
    const serving = await serve({ batchTimeout: 20 });
    const replies = await Promise.all(
      Array.from({ length: 500 }, async (_, i) => {
        const { y, batch } = await serving.batchedRun(rowOf(i));
        expect([...(y.data as Float32Array)]).toEqual([2 * i, 2, 4, 6]);
        return batch.data as BigInt64Array;
      }),
    );
    const batches = new Map(replies.map(([number, rows]) => [number, Number(rows)]));
    // The server counted the batches, and their rows.
    expect(batches.size).toBe(Math.ceil(500 / 32));
    expect([...batches.values()].reduce((sum, rows) => sum + rows, 0)).toBe(500);
  });

  it('[19.2] reads names, types and axes from the server', async () => {
    const serving = await serve({ rollout: { version: 'v1' } }, server.url, 'double');
    expect(serving.signature?.inputs).toEqual([
      { name: 'x', type: 'float32', shape: [null, 4], batchAxis: 0 },
    ]);
    expect(await call(serving, 5)).toBe(10);
  });

  it('[19.4] fails the boot for a model that the server does not have', async () => {
    const error = await failureOf(serve({}, server.url, 'trebel'));
    expect(error).toBeInstanceOf(ServingLoadError);
    expect((error as Error).message).toContain(
      `The model "trebel" of the endpoint ${server.url} cannot be used`,
    );
    expect((error as Error).message).toMatch(/Model trebel .*not found/);
  });

  it('[19.4] fails the boot for a version that the server does not have', async () => {
    await expect(serve({ rollout: { version: 'v9' } })).rejects.toThrow(/version v9 not found/);
  });

  it('[19.7] fails the callers of the rows that the model fails on, and no others', async () => {
    const serving = await serve({ batchTimeout: 20 });
    const firsts = [1, 2, FAIL, 4, 5];
    const replies = await Promise.all(
      firsts.map((first) => call(serving, first).catch((error: unknown) => error)),
    );
    expect(replies.filter((reply) => typeof reply === 'number')).toEqual([2, 4, 8, 10]);
    expect(replies[2]).toBeInstanceOf(BatchFailedError);
    expect((replies[2] as Error).message).toContain('a row is -1');
  });

  it('[19.5] cancels a batch on the server when its caller has left', async () => {
    const serving = await serve();
    const left = new AbortController();
    const reply = failureOf(serving.batchedRun(rowOf(WAIT), { signal: left.signal }));
    await until(() => server.log.split('waits').length > 1);
    left.abort();
    await reply;
    await until(() => server.log.includes('left'));
    expect(await call(serving, 1)).toBe(2);
  });

  it('[19.5] ends a call and its batch at the deadline', async () => {
    const serving = await serve();
    const before = server.log.split('left').length;
    const error = await failureOf(serving.batchedRun(rowOf(WAIT), { timeout: 300 }));
    expect(error).toBeInstanceOf(DeadlineExceededError);
    await until(() => server.log.split('left').length > before);
    expect(server.log).toMatch(/'timeout': (2\d\d\d\d\d|300000)/);
  });

  it('[19.6] fails the batch of a server that dies in it, and uses its successor', async () => {
    const serving = await serve({
      recovery: { idempotent: false, restartDelay: 10, maxRestarts: 1000 },
    });
    const lost = await failureOf(call(serving, EXIT));
    expect(lost).toBeInstanceOf(PartitionLostError);
    expect((lost as Error).message).toContain(server.url);
    await server.ended();
    const reply = call(serving, 7);
    expect(serving.partitions().map(({ state }) => state)).toEqual(['restarting', 'restarting']);
    await server.start();
    expect(await reply).toBe(14);
  });

  it('[19.6] loses no row when a server is killed under load', async () => {
    const serving = await serve({ batchSize: 8, recovery: { restartDelay: 10 } }, [
      server.url,
      other.url,
    ]);
    const replies = Array.from({ length: 200 }, (_, i) => call(serving, i));
    await replies[20];
    await server.kill();
    expect(await Promise.all(replies)).toEqual(Array.from({ length: 200 }, (_, i) => 2 * i));
    const states = serving.partitions().map(({ state, provider }) => [state, provider]);
    expect(states.filter(([state]) => state === 'up')).toEqual([
      ['up', other.url],
      ['up', other.url],
    ]);
  });

  it('[19.6] opens the circuit while the only server is away, with the reason', async () => {
    const serving = await serve({ recovery: { restartDelay: 1, maxRestarts: 2 } });
    await server.kill();
    const error = await failureOf(call(serving, 1));
    expect(error).toBeInstanceOf(ServingUnavailableError);
    expect((error as Error).message).toContain('ECONNREFUSED');
    expect(serving.partitions().map(({ state }) => state)).toEqual(['lost', 'lost']);
  });
});

describeUnless(missingServer('kserve'), 'KServe as an endpoint', () => {
  const start = useServings();
  let server: ModelServer;

  beforeAll(async () => {
    server = await ModelServer.kserve();
  });
  afterAll(() => server.close());

  it('[19.1] gives each of many concurrent callers its own rows', async () => {
    const serving = await start<Reply>({ name: 'double', model: endpoint(server.url) });
    const firsts = Array.from({ length: 100 }, (_, i) => i);
    const replies = await Promise.all(firsts.map((first) => serving.batchedRun(rowOf(first))));
    expect(replies.map(({ y }) => y.data[0])).toEqual(firsts.map((first) => 2 * first));
  });
});
