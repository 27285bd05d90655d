import { getEventListeners } from 'node:events';
import { describe, expect, it } from '@jest/globals';
import { Test } from '@nestjs/testing';
import {
  Batch,
  createServing,
  type LocalServing,
  ServingModule,
  ServingService,
} from 'nestjs-serving';
import { HeldFunction } from '../../fixtures/batching/held-function.js';
import { useServings } from '../../fixtures/serving/use-servings.js';
import { turn, useVirtualTime } from '../../fixtures/async/virtual-time.js';

const reason = new Error('the client has left');
const letters = (text: string): Batch => Batch.stack(text.split(''));

describe('A signal', () => {
  useVirtualTime();
  const start = useServings();

  /** A serving whose one partition runs a batch. */
  async function busy(
    options: object = {},
  ): Promise<[LocalServing, HeldFunction, Promise<unknown>]> {
    const held = new HeldFunction();
    const serving = await start<unknown>({
      name: 'held',
      model: { useFactory: held.useFactory },
      ...options,
    });
    const first = serving.batchedRun('first');
    await turn();
    return [serving, held, first];
  }

  it.each(['batchedRun', 'run'] as const)(
    '[7.3] A signal that has aborted ends a %s call before anything runs for it',
    async (method) => {
      const steps: string[] = [];
      const serving = await start({
        name: 'upper',
        preprocess: (text) => (steps.push('preprocess'), { batch: Batch.stack([text]) }),
        model: { useFactory: () => (rows: string[]) => (steps.push('batch'), rows) },
      });

      await expect(serving[method]('a', { signal: AbortSignal.abort(reason) })).rejects.toBe(
        reason,
      );
      await turn();

      expect(steps).toEqual([]);
    },
  );

  it('[7.3] An AbortController given as the options of a stream ends the stream', async () => {
    const [serving, held, first] = await busy();
    const leaving = new AbortController();
    const failed = new Promise((resolve) =>
      serving.stream('a', leaving).subscribe({ error: resolve }),
    );
    await turn();

    leaving.abort(reason);

    expect(await failed).toBe(reason);
    held.next().finish(['FIRST']);
    await first;
    expect(held.rows).toEqual([]);
  });

  it('[7.3] A signal ends a queued call at once while every partition is busy, and its rows never run', async () => {
    const [serving, held, first] = await busy({ batchSize: 4 });
    const leaving = new AbortController();
    const replies = [
      serving.batchedRun('a'),
      serving.batchedRun(letters('bc'), leaving),
      serving.batchedRun('d'),
    ];
    await turn();

    leaving.abort(reason);

    await expect(replies[1]).rejects.toBe(reason);
    expect(held.rows).toEqual([['first']]);
    held.next().finish(['FIRST']);
    await turn();
    expect(held.rows).toEqual([['a', 'd']]);
    held.next().finish(['A', 'D']);
    expect(await Promise.all([first, replies[0], replies[2]])).toEqual(['FIRST', 'A', 'D']);
  });

  it('[7.3] A signal ends a call in an open window', async () => {
    const held = new HeldFunction();
    const serving = await start({
      name: 'held',
      model: { useFactory: held.useFactory },
      batchSize: 2,
      batchTimeout: 10_000,
    });
    const leaving = new AbortController();
    const left = serving.batchedRun('a', leaving);
    await turn();

    leaving.abort(reason);
    await expect(left).rejects.toBe(reason);
    const replies = ['b', 'c'].map((row) => serving.batchedRun(row));
    await turn();

    expect(held.rows).toEqual([['b', 'c']]);
    held.next().finish(['B', 'C']);
    expect(await Promise.all(replies)).toEqual(['B', 'C']);
  });

  it('[7.3] A signal ends a running call at once, its output is discarded, and the others of its batch get theirs', async () => {
    const held = new HeldFunction();
    const serving = await start<unknown>({ name: 'held', model: { useFactory: held.useFactory } });
    const leaving = new AbortController();
    const replies = [serving.batchedRun('a', leaving), serving.batchedRun('b')];
    await turn();

    leaving.abort(reason);
    await expect(replies[0]).rejects.toBe(reason);
    expect(held.rows).toEqual([['a', 'b']]);
    held.next().finish(['A', 'B']);

    expect(await replies[1]).toBe('B');
  });

  it('[7.3] [4.5] A signal ends a split call, and its queued batches do not run', async () => {
    const held = new HeldFunction();
    const serving = await start<unknown>({
      name: 'held',
      model: { useFactory: held.useFactory },
      batchSize: 2,
    });
    const leaving = new AbortController();
    const left = serving.batchedRun(letters('abcde'), leaving);
    const reply = serving.batchedRun('f');
    await turn();

    leaving.abort(reason);
    await expect(left).rejects.toBe(reason);
    held.next().finish(['A', 'B']);
    await turn();

    expect(held.rows).toEqual([['f']]);
    held.next().finish(['F']);
    expect(await reply).toBe('F');
  });

  it.each(['batchedRun', 'run'] as const)(
    '[7.3] [1.5] A signal that aborts during preprocess ends a %s call before its batch',
    async (method) => {
      const leaving = new AbortController();
      const batches: string[][] = [];
      const serving = await start({
        name: 'upper',
        preprocess: async (text) => {
          await Promise.resolve();
          leaving.abort(reason);
          return { batch: Batch.stack([text]) };
        },
        model: { useFactory: () => (rows: string[]) => (batches.push(rows), rows) },
      });

      await expect(serving[method]('a', leaving)).rejects.toBe(reason);
      await turn();

      expect(batches).toEqual([]);
    },
  );

  it('[7.3] [3.1] A signal ends an inline run at once, and its remaining pieces do not run', async () => {
    const held = new HeldFunction();
    const serving = createServing({
      name: 'held',
      model: { useFactory: held.useFactory },
      batchSize: 2,
    });
    const leaving = new AbortController();
    const left = serving.run(letters('abcde'), leaving);
    await turn();

    leaving.abort(reason);
    await expect(left).rejects.toBe(reason);
    held.next().finish(['A', 'B']);
    await turn();

    expect(held.rows).toEqual([]);
    await serving.close();
  });

  it('[7.3] A signal that aborts without a reason rejects the call with an AbortError', async () => {
    const [serving, held, first] = await busy();
    const leaving = new AbortController();
    const left = serving.batchedRun('a', leaving);

    leaving.abort();

    await expect(left).rejects.toMatchObject({ name: 'AbortError' });
    held.next().finish(['FIRST']);
    await first;
  });

  it.each(['batchedRun', 'run'] as const)(
    '[7.3] A %s call that has ended leaves no listener on its signal',
    async (method) => {
      const { signal } = new AbortController();
      const serving = await start({
        name: 'touchy',
        model: {
          useFactory: () => (rows: string[]) =>
            rows.map((row) => (row === 'bad' ? new RangeError(row) : row)),
        },
      });

      expect(await serving[method]('a', { signal })).toBe('a');
      await expect(serving[method]('bad', { signal })).rejects.toThrow(RangeError);
      await expect(serving[method](Batch.empty(), { signal })).rejects.toThrow('without rows');

      expect(getEventListeners(signal, 'abort')).toEqual([]);
    },
  );

  it('[7.1] [7.3] A call that its signal ends makes room in the queue', async () => {
    const [serving, held, first] = await busy({ batchSize: 2, queue: { maxRows: 2 } });
    const leaving = new AbortController();
    const left = serving.batchedRun(letters('ab'), leaving);
    await turn();
    await expect(serving.batchedRun('c')).rejects.toThrow('no room for 1 more');

    leaving.abort(reason);
    await expect(left).rejects.toBe(reason);
    held.next().finish(['FIRST']);
    await first;
    await turn();

    const reply = serving.batchedRun(letters('de'));
    await turn();
    held.next().finish(['D', 'E']);
    expect(await reply).toEqual(['D', 'E']);
  });

  it('[7.3] A signal has one listener for any number of calls and ends them all', async () => {
    const [serving, held, first] = await busy();
    const leaving = new AbortController();
    const left = Array.from({ length: 50 }, (_, i) => serving.batchedRun(`${i}`, leaving));
    await turn();
    expect(getEventListeners(leaving.signal, 'abort')).toHaveLength(1);

    leaving.abort(reason);

    expect(await Promise.allSettled(left)).toEqual(
      left.map(() => ({ status: 'rejected', reason })),
    );
    held.next().finish(['FIRST']);
    await first;
    await turn();
    expect(held.rows).toEqual([]);
  });

  it.each(['batchedRun', 'run'] as const)(
    '[7.3] A signal works with %s by the name of a serving',
    async (method) => {
      const servings = [{ name: 'upper', model: { useFactory: () => (rows: string[]) => rows } }];
      const app = await Test.createTestingModule({
        imports: [ServingModule.forRoot({ servings })],
      }).compile();
      await app.init();

      await expect(
        app.get(ServingService)[method]('upper', 'a', { signal: AbortSignal.abort(reason) }),
      ).rejects.toBe(reason);
      await app.close();
    },
  );
});
