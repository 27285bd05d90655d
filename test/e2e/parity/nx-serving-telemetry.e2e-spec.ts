import { AsyncLocalStorage } from 'node:async_hooks';
import { subscribe, unsubscribe } from 'node:diagnostics_channel';
import { describe, expect, it, jest } from '@jest/globals';
import {
  Batch,
  type BatchEndEvent,
  createServing,
  defineServing,
  type ServingEvent,
} from 'nestjs-serving';
import { collect } from '../../fixtures/async/collect.js';
import { doubled, goOn } from '../../fixtures/batching/doubling.js';
import { HeldFunction } from '../../fixtures/batching/held-function.js';
import { floats } from '../../fixtures/values/tensors.js';
import { useServings } from '../../fixtures/serving/use-servings.js';
import { later, passTime, turn, useVirtualTime } from '../../fixtures/async/virtual-time.js';

const after = (ms: number): Promise<void> => new Promise((resolve) => setTimeout(resolve, ms));

/** Takes 1 ms to preprocess, 20 to run, 300 to postprocess. */
const slow = defineServing({
  name: 'slow',
  preprocess: async (numbers: number[]) => (await after(1), { batch: Batch.stack(numbers) }),
  model: { useFactory: () => async (rows: number[]) => (await after(20), doubled(rows)) },
  postprocess: async (output: number[]) => (await after(300), output),
});

describe('Telemetry, like Nx.Serving', () => {
  useVirtualTime();
  const serve = useServings();

  it.each(['run', 'batchedRun'] as const)(
    '[12.1] A %s call reports how long each of its stages took',
    async (method) => {
      const serving = await serve(slow);
      const events: ServingEvent[] = [];
      serving.events$.subscribe((event) => events.push(event));
      const startedAt = Date.now();

      await passTime(serving[method]([1, 2, 3]), 1);

      const mode = method === 'run' ? 'inline' : 'batched';
      const call = { serving: 'slow', version: '1', call: 1, mode };
      expect(events.map(({ type }) => type)).toEqual([
        'call:start',
        'batch:start',
        'batch:end',
        'call:end',
      ]);
      expect(events[0]).toEqual({ type: 'call:start', ...call });
      expect(events.at(-1)).toEqual({
        type: 'call:end',
        ...call,
        rows: 3,
        startedAt: expect.any(Number),
        preprocessing: 1,
        waiting: 0,
        running: 20,
        postprocessing: 300,
        stage: 'postprocessing',
      });
      expect((events.at(-1) as { startedAt: number }).startedAt).toBeCloseTo(startedAt, -1);
    },
  );

  it('[12.1] [12.2] A batch reports its partition, times, calls and outcome', async () => {
    const held = new HeldFunction<never>();
    const serving = await serve({
      name: 'held',
      model: { useFactory: held.useFactory },
      batchKeys: ['short', 'long'],
      batchSize: 4,
      batchTimeout: 10,
      partitions: 2,
    });
    const events: ServingEvent[] = [];
    serving.events$.subscribe((event) => event.type.startsWith('batch') && events.push(event));
    const calls = [1, 2].map((rows) =>
      serving.batchedRun(
        Batch.concatenate([floats([rows], [1, 2].slice(0, rows))]).withKey('long'),
      ),
    );
    await later(10);
    await later(5);
    await goOn(held);
    await Promise.all(calls);

    const batch = {
      serving: 'held',
      version: '1',
      batch: 1,
      key: 'long',
      partition: 0,
      rows: 3,
      batchSize: 4,
      fill: 0.75,
      reason: 'timeout',
      wait: 10,
      queued: 0,
      calls: [1, 2],
    };
    expect(events).toEqual([
      { type: 'batch:start', ...batch },
      { type: 'batch:end', ...batch, runTime: 5, padding: 0 },
    ]);
  });

  it('[12.1] A batch lists the observed calls, and a call reports its number of rows', async () => {
    const serving = await serve({
      name: 'calls',
      model: { useFactory: () => doubled },
      batchSize: 4,
    });
    const events: ServingEvent[] = [];
    serving.events$.subscribe((event) => events.push(event));

    await Promise.all([serving.batchedRun(1), serving.batchedRun(Batch.stack([2, 3, 4]))]);
    await turn();

    const ends = events.filter(({ type }) => type === 'call:end') as {
      call: number;
      rows: number;
    }[];
    expect(ends.map(({ call, rows }) => [call, rows])).toEqual([
      [1, 1],
      [2, 3],
    ]);
    expect(events.find(({ type }) => type === 'batch:end')).toMatchObject({ calls: [1, 2] });
  });

  it('[12.2] Every piece of an inline run is reported as a batch', async () => {
    const serving = createServing({
      name: 'pieces',
      model: { useFactory: () => doubled },
      batchSize: 2,
    });
    const batches: BatchEndEvent[] = [];
    serving.eventsOf('batch:end').subscribe((batch) => batches.push(batch));

    await serving.run(Batch.stack([1, 2, 3]));

    expect(batches.map(({ rows, reason }) => [rows, reason])).toEqual([
      [2, 'inline'],
      [1, 'inline'],
    ]);
  });

  it('[12.1] A failed call reports its error at every stage, and so does its batch', async () => {
    const cause = new RangeError('oops');
    const serving = await serve({
      name: 'fails',
      model: { useFactory: () => () => Promise.reject(cause) },
      preprocess: (input) => {
        if (input === 'bad') {
          throw cause;
        }
        return { batch: input };
      },
    });
    const events: ServingEvent[] = [];
    serving.events$.subscribe((event) => events.push(event));

    const errors = [];
    for (const call of [
      () => serving.batchedRun('bad'),
      () => serving.batchedRun(Batch.empty()),
      () => serving.batchedRun('good'),
    ]) {
      errors.push(await call().catch((error: unknown) => error));
      await turn();
    }

    expect(
      events
        .filter(({ type }) => type === 'call:end')
        .map((event) => 'error' in event && event.error),
    ).toEqual(errors);
    expect(events.filter(({ type }) => type === 'batch:end')).toMatchObject([{ error: { cause } }]);
    expect(errors).toMatchObject([
      { message: 'oops' },
      { code: 'SERVING_INVALID_BATCH' },
      { code: 'SERVING_BATCH_FAILED' },
    ]);
  });

  it('[12.1] A streamed call lasts until its stream has ended', async () => {
    const serving = await serve({
      name: 'streams',
      model: { useFactory: () => doubled },
      batchSize: 1,
    });
    const ends: ServingEvent[] = [];
    serving.eventsOf('call:end').subscribe((event) => ends.push(event));
    for await (const { batch } of serving.stream(Batch.stack([1, 2]))) {
      expect(batch.rows).toBe(1);
      expect(ends).toEqual([]);
    }

    expect(ends).toMatchObject([{ mode: 'stream', rows: 2 }]);
    await collect(serving.stream(1));
    expect(ends).toMatchObject([{ call: 1 }, { call: 2 }]);
  });

  it('[12.1] Diagnostics channels publish the same events, and a call starts in the context of its caller', async () => {
    const request = new AsyncLocalStorage<string>();
    const published = jest.fn<(request: string | undefined, event: unknown) => void>();
    const listen = (event: unknown): void => published(request.getStore(), event);
    const channels = ['call:start', 'batch:end'].map((type) => `nestjs-serving:${type}`);
    channels.forEach((name) => subscribe(name, listen));
    const serving = await serve({ name: 'channels', model: { useFactory: () => doubled } });
    try {
      await request.run('request 7', () => serving.batchedRun(2));
      await turn();
    } finally {
      channels.forEach((name) => unsubscribe(name, listen));
    }
    await serving.batchedRun(2);

    expect(published.mock.calls[0]).toEqual([
      'request 7',
      { type: 'call:start', serving: 'channels', version: '1', call: 1, mode: 'batched' },
    ]);
    expect(published.mock.calls.slice(1).map(([, event]) => event)).toEqual([
      expect.objectContaining({
        type: 'batch:end',
        serving: 'channels',
        version: '1',
        rows: 1,
        calls: [1],
      }),
    ]);
  });
});
