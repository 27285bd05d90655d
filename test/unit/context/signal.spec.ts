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
    const serving = await start<unknown>({ name: 'held', useFactory: held.useFactory, ...options });
    const first = serving.batchedRun('first');
    await turn();
    return [serving, held, first];
  }

  it.each(['batchedRun', 'run'] as const)(
    '[7.3] that has aborted ends a %s before anything is done for it',
    async (method) => {
      const steps: string[] = [];
      const serving = await start({
        name: 'upper',
        preprocess: (text) => (steps.push('preprocess'), { batch: Batch.stack([text]) }),
        useFactory: () => (rows: string[]) => (steps.push('batch'), rows),
      });

      await expect(serving[method]('a', { signal: AbortSignal.abort(reason) })).rejects.toBe(
        reason,
      );
      await turn();

      expect(steps).toEqual([]);
    },
  );

  it('[7.3] of a controller that is given as the options of a stream ends that, too', async () => {
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

  it('[7.3] ends a call that is queued at once, while every partition is busy; its rows never run', async () => {
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

  it('[7.3] ends a call in a window that is open', async () => {
    const held = new HeldFunction();
    const serving = await start({
      name: 'held',
      useFactory: held.useFactory,
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

  it('[7.3] ends a call that runs at once; its output is dropped, and others get theirs', async () => {
    const held = new HeldFunction();
    const serving = await start<unknown>({ name: 'held', useFactory: held.useFactory });
    const leaving = new AbortController();
    const replies = [serving.batchedRun('a', leaving), serving.batchedRun('b')];
    await turn();

    leaving.abort(reason);
    await expect(replies[0]).rejects.toBe(reason);
    expect(held.rows).toEqual([['a', 'b']]);
    held.next().finish(['A', 'B']);

    expect(await replies[1]).toBe('B');
  });

  it('[7.3] [4.5] ends a call that is split over batches, of which those that are queued do not run', async () => {
    const held = new HeldFunction();
    const serving = await start<unknown>({
      name: 'held',
      useFactory: held.useFactory,
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
    '[7.3] [1.5] that aborts during preprocess ends the %s before its batch',
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
        useFactory: () => (rows: string[]) => (batches.push(rows), rows),
      });

      await expect(serving[method]('a', leaving)).rejects.toBe(reason);
      await turn();

      expect(batches).toEqual([]);
    },
  );

  it('[7.3] [3.1] ends a run at once, and its pieces that have not run do not', async () => {
    const held = new HeldFunction();
    const serving = createServing({ name: 'held', useFactory: held.useFactory, batchSize: 2 });
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

  it('[7.3] gives the reason that it has of itself where none is given', async () => {
    const [serving, held, first] = await busy();
    const leaving = new AbortController();
    const left = serving.batchedRun('a', leaving);

    leaving.abort();

    await expect(left).rejects.toMatchObject({ name: 'AbortError' });
    held.next().finish(['FIRST']);
    await first;
  });

  it.each(['batchedRun', 'run'] as const)(
    '[7.3] that does not abort hears no more of a %s that has ended',
    async (method) => {
      const { signal } = new AbortController();
      const serving = await start({
        name: 'touchy',
        useFactory: () => (rows: string[]) =>
          rows.map((row) => (row === 'bad' ? new RangeError(row) : row)),
      });

      expect(await serving[method]('a', { signal })).toBe('a');
      await expect(serving[method]('bad', { signal })).rejects.toThrow(RangeError);
      await expect(serving[method](Batch.empty(), { signal })).rejects.toThrow('without rows');

      expect(getEventListeners(signal, 'abort')).toEqual([]);
    },
  );

  it('[7.1] [7.3] makes room in the queue when the batch of the call is taken', async () => {
    const [serving, held, first] = await busy({ batchSize: 2, maxQueue: 2 });
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

  it('[7.3] has one listener, however many calls it goes with, and ends them all', async () => {
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

  it.each(['batchedRun', 'run'] as const)('[7.3] goes with a %s by name', async (method) => {
    const servings = [{ name: 'upper', useFactory: () => (rows: string[]) => rows }];
    const app = await Test.createTestingModule({
      imports: [ServingModule.forRoot({ servings })],
    }).compile();
    await app.init();

    await expect(
      app.get(ServingService)[method]('upper', 'a', { signal: AbortSignal.abort(reason) }),
    ).rejects.toBe(reason);
    await app.close();
  });
});
