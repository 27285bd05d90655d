import { describe, expect, it } from '@jest/globals';
import {
  Batch,
  CallCancelledError,
  DeadlineExceededError,
  type LocalServing,
  OverloadedError,
  type PreprocessContext,
  type ServingDefinition,
} from 'nestjs-serving';
import { useServings } from '../../fixtures/serving/use-servings.js';
import { later, turn, useVirtualTime } from '../../fixtures/async/virtual-time.js';

/** Works of `preprocess`, each until the test ends it. */
class Works {
  begun = 0;
  readonly ends: (() => void)[] = [];
  readonly signals: AbortSignal[] = [];

  readonly preprocess = async (input: unknown, { signal }: PreprocessContext) => {
    this.begun++;
    this.signals.push(signal);
    await new Promise<void>((end) => this.ends.push(end));
    return { batch: [input] };
  };

  endAll(): void {
    this.ends.splice(0).forEach((end) => end());
  }
}

describe('Calls in an asynchronous preprocess', () => {
  useVirtualTime();
  const startServing = useServings();

  async function start(
    options: Partial<ServingDefinition> = {},
  ): Promise<{ serving: LocalServing; works: Works }> {
    const works = new Works();
    const serving = await startServing<unknown>({
      name: 'prepared',
      batchSize: 2,
      queue: { maxRows: 3 },
      preprocess: works.preprocess,
      model: { useFactory: () => (rows: unknown[]) => rows },
      ...options,
    });
    return { serving, works };
  }

  it.each(['batchedRun', 'run', 'stream'] as const)(
    '[FR9] With %s, calls in preprocess count as queued, and those beyond the limit are refused before the work',
    async (method) => {
      const { serving, works } = await start();
      const call = (row: number): Promise<unknown> =>
        method === 'stream'
          ? serving.stream(row)[Symbol.asyncIterator]().next()
          : serving[method](row);
      if (method === 'run') {
        const first = call(0);
        await turn();
        works.endAll();
        await first;
        works.begun = 0;
      }
      const calls = Promise.allSettled([1, 2, 3, 4, 5].map((row) => call(row)));
      await turn();

      expect([works.begun, serving.queued, serving.health().queued]).toEqual([3, 3, 3]);
      works.endAll();
      expect((await calls).map(({ status }) => status)).toEqual([
        ...Array<string>(3).fill('fulfilled'),
        ...Array<string>(2).fill('rejected'),
      ]);
      expect((await calls)[4]).toMatchObject({
        reason: {
          code: 'SERVING_OVERLOADED',
          message: expect.stringContaining('has 3 of at most 3 rows in its queue'),
        },
      });
      expect(serving.queued).toBe(0);
      expect(serving.counters()).toMatchObject({ failed: { SERVING_OVERLOADED: 2 } });
    },
  );

  it('[FR9] A call whose caller leaves frees its place, and its preprocess gets a signal that aborts', async () => {
    const { serving, works } = await start({ queue: { maxRows: 4 } });
    const leaver = new AbortController();
    const events = serving.stream('streamed');
    const reader = events.subscribe(() => {});
    const calls = Promise.allSettled([
      serving.batchedRun('left', leaver),
      serving.batchedRun('late', { timeout: 5 }),
      serving.batchedRun('stays'),
    ]);
    await turn();
    expect(serving.queued).toBe(4);
    await expect(serving.batchedRun('more')).rejects.toThrow(OverloadedError);

    leaver.abort(new CallCancelledError('gone'));
    reader.unsubscribe();
    await later(5);

    expect(works.signals.map(({ aborted }) => aborted).filter(Boolean)).toHaveLength(3);
    expect(works.signals.map(({ reason }) => (reason as Error | undefined)?.constructor)).toEqual(
      expect.arrayContaining([CallCancelledError, DeadlineExceededError, undefined]),
    );
    expect(serving.queued).toBe(1);
    works.endAll();
    expect((await calls).map(({ status }) => status)).toEqual([
      'rejected',
      'rejected',
      'fulfilled',
    ]);
    expect(serving.queued).toBe(0);
  });

  it('[FR9] A preprocess that fails, or makes rows that are refused, frees its place', async () => {
    const { serving } = await start({
      queue: { maxRows: 2, maxRowsPerCall: 1 },
      preprocess: async (input) => {
        await turn();
        if (input === 'bad') {
          throw new Error('no good');
        }
        return { batch: Batch.stack([input, input]) };
      },
    });
    await expect(serving.batchedRun('bad')).rejects.toThrow('no good');
    await expect(serving.batchedRun('wide').then(() => 'answered')).rejects.toThrow('at most 1');
    expect(serving.queued).toBe(0);
  });

  it.each([
    ['a timeout that has passed', () => ({ timeout: 0 })],
    ['a signal that its own preprocess aborts', (leave: AbortController) => leave],
  ])(
    '[FR9] A call with %s after a synchronous preprocess frees its place',
    async (_, optionsOf) => {
      const { serving } = await start({
        preprocess: (input) => {
          if (input instanceof AbortController) {
            input.abort(new Error('the caller has left'));
          }
          return { batch: ['row'] };
        },
      });
      for (const way of ['batchedRun', 'run'] as const) {
        for (let call = 0; call < 5; call++) {
          const leave = new AbortController();
          const reply = serving[way](leave, optionsOf(leave));
          await expect(reply).rejects.toThrow(/did not answer within|the caller has left/);
        }
      }

      expect(serving.queued).toBe(0);
      expect(await serving.batchedRun('another call')).toEqual(['row']);
    },
  );

  it('[FR9] A full queue refuses a call before a synchronous preprocess works for it', async () => {
    let begun = 0;
    const { serving } = await start({
      batchSize: 1,
      queue: { maxRows: 1, maxCost: 10, cost: () => 10 },
      preprocess: (input) => {
        begun++;
        return { batch: [input] };
      },
      model: { useFactory: () => async (rows: unknown[]) => (await later(5), rows) },
    });
    const calls = Promise.allSettled([1, 2, 3, 4].map((row) => serving.batchedRun(row)));
    await turn();
    expect([begun, serving.queued]).toEqual([2, 1]);
    await later(20);
    expect((await calls).map(({ status }) => status)).toEqual([
      'fulfilled',
      'fulfilled',
      'rejected',
      'rejected',
    ]);
  });
});
