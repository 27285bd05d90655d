import { describe, expect, it } from '@jest/globals';
import {
  Batch,
  DeadlineExceededError,
  type LocalServing,
  type ServingOptions,
} from 'nestjs-serving';
import { BatchScript } from 'nestjs-serving/testing';
import { iterated } from '../../fixtures/async/streams.js';
import { useServings } from '../../fixtures/serving/use-servings.js';
import { later, timers, turn, useVirtualTime } from '../../fixtures/async/virtual-time.js';
import { outcomeOf } from '../../fixtures/async/outcome-of.js';

const letters = (text: string): Batch => Batch.stack(text.split(''));
const upper = (rows: readonly string[]): string[] => rows.map((row) => row.toUpperCase());

const late = (ms: number) =>
  expect.objectContaining({
    code: 'SERVING_DEADLINE_EXCEEDED',
    statusCode: 504,
    message: `Serving "timed" did not answer within the ${ms} ms that the call had`,
  });

describe('A call with a timeout', () => {
  useVirtualTime();
  const startServing = useServings();

  async function start(
    options: Partial<ServingOptions> = {},
  ): Promise<[LocalServing, BatchScript<string, string>]> {
    const script = new BatchScript<string, string>();
    const serving = await startServing<unknown>(
      script.createServing<unknown, unknown>({ name: 'timed', ...options }),
    );
    return [serving, script];
  }

  /** A serving whose one partition runs a batch. */
  async function busy(
    options: Partial<ServingOptions> = {},
  ): Promise<[LocalServing, BatchScript<string, string>]> {
    const [serving, script] = await start(options);
    void serving.batchedRun('first');
    await script.next();
    return [serving, script];
  }

  it('[7.2] A call is answered at its deadline while all partitions are busy, and its rows never run', async () => {
    const [serving, script] = await busy({ batchSize: 4 });
    const call = outcomeOf(serving.batchedRun(letters('abc'), { timeout: 50 }));
    const other = outcomeOf(serving.batchedRun('d'));
    await later(49);
    expect([call.outcome, serving.queued]).toEqual([undefined, 4]);

    await later(1);
    expect([call.outcome, serving.queued]).toEqual([late(50), 1]);
    expect(call.outcome).toBeInstanceOf(DeadlineExceededError);

    script.release(upper);
    await turn();
    expect(other.outcome).toBe('D');
    expect(script.batches).toEqual([]);
  });

  it('[7.2] The places of rows whose deadline has passed go to later rows', async () => {
    const [serving, script] = await busy({ batchSize: 2 });
    const calls = ['a', 'b'].map((row) => outcomeOf(serving.batchedRun(row, { timeout: 10 })));
    await later(10);
    ['c', 'd'].forEach((row) => void serving.batchedRun(row));

    script.batches[0]!.finish(upper);
    await turn();

    expect(script.rows).toEqual([['c', 'd']]);
    expect(calls.map(({ outcome }) => outcome)).toEqual([late(10), late(10)]);
    script.release(upper);
  });

  it('[7.2] A running call is answered at its deadline, and the others of its batch get their results', async () => {
    const [serving, script] = await start();
    const call = outcomeOf(serving.batchedRun('a', { timeout: 10 }));
    const other = outcomeOf(serving.batchedRun('b'));
    const batch = await script.next();

    await later(10);
    expect([call.outcome, batch.isWaiting(0), batch.isWaiting(1)]).toEqual([late(10), false, true]);

    batch.finish(upper);
    await turn();
    expect(other.outcome).toBe('B');
  });

  it('[7.2] An answered call with a timeout leaves no timer', async () => {
    const [serving, script] = await start();
    const calls = [
      serving.batchedRun('a', { timeout: 1000 }),
      serving.run('b', { timeout: 1000 }),
    ].map(outcomeOf);
    await turn();

    script.release(upper);
    await turn();

    expect([calls.map(({ outcome }) => outcome), timers()]).toEqual([['A', 'B'], 0]);
  });

  it('[7.2] A refused call with a timeout leaves no timer', async () => {
    const [serving, script] = await busy({ queue: { maxRows: 32 } });

    await expect(serving.batchedRun(letters('x'.repeat(33)), { timeout: 1000 })).rejects.toThrow(
      'takes at most',
    );
    await expect(serving.batchedRun(Batch.empty(), { timeout: 1000 })).rejects.toThrow(
      'without rows',
    );

    expect(timers()).toBe(0);
    script.release(upper);
  });

  it('[7.2] A call with a timeout of 0 ms is answered at once', async () => {
    const [serving, script] = await start();

    await expect(serving.batchedRun('a', { timeout: 0 })).rejects.toEqual(late(0));

    await turn();
    expect(script.batches).toEqual([]);
  });

  it.each(['batchedRun', 'run'] as const)(
    '[7.2] [1.5] A call whose time ends in preprocess never reaches a batch, by %s',
    async (method) => {
      const [serving, script] = await start({
        preprocess: async (row) => {
          await later(20);
          return { batch: row };
        },
      });

      await expect(serving[method]('a', { timeout: 20 })).rejects.toEqual(late(20));

      await turn();
      expect([script.batches, timers()]).toEqual([[], 0]);
    },
  );

  it.each(['batchedRun', 'run'] as const)(
    '[7.2] [1.5] A call is answered by %s at its deadline while it preprocesses, and its rows do not run',
    async (method) => {
      let prepare!: (prepared: { batch: string }) => void;
      const [serving, script] = await start({
        preprocess: () => new Promise((resolve) => (prepare = resolve)),
      });
      const call = outcomeOf(serving[method]('a', { timeout: 10 }));
      await later(10);
      expect(call.outcome).toEqual(late(10));

      prepare({ batch: 'a' });
      await turn();

      expect([script.batches, timers()]).toEqual([[], 0]);
    },
  );

  it('[7.2] [1.5] A call is answered at its deadline while it postprocesses', async () => {
    let shape!: (output: string) => void;
    const [serving, script] = await start({
      postprocess: () => new Promise((resolve) => (shape = resolve as never)),
    });
    const call = outcomeOf(serving.batchedRun('a', { timeout: 10 }));
    await turn();
    script.release(upper);
    await later(10);

    expect(call.outcome).toEqual(late(10));
    shape('too late');
    await turn();
  });

  it('[7.3] [1.5] A signal ends a call while it preprocesses', async () => {
    const leaving = new AbortController();
    const [serving] = await start({
      preprocess: () => new Promise((resolve) => setTimeout(() => resolve({ batch: 'a' }), 50)),
    });
    const call = outcomeOf(serving.batchedRun('a', leaving));
    await turn();

    leaving.abort('gone');
    await turn();

    expect(call.outcome).toBe('gone');
    await later(50);
  });

  it('[7.2] [4.5] No more batches of a split call run after its deadline', async () => {
    const [serving, script] = await start({ batchSize: 2 });
    const call = outcomeOf(serving.batchedRun(letters('abcde'), { timeout: 10 }));
    await turn();
    script.batches[0]!.finish(upper);
    await later(10);
    expect([call.outcome, script.rows]).toEqual([late(10), [['c', 'd']]]);

    script.batches[0]!.finish(upper);
    await turn();

    expect(script.batches).toEqual([]);
  });

  it('[7.2] [3.1] No more pieces of an inline run start after its deadline', async () => {
    const [serving, script] = await start({ batchSize: 2 });
    const call = outcomeOf(serving.run(letters('abcde'), { timeout: 10 }));
    await turn();
    expect(script.rows).toEqual([['a', 'b']]);

    await later(10);
    script.batches[0]!.finish(upper);
    await turn();

    expect([call.outcome, script.batches]).toEqual([late(10), []]);
  });

  it('[7.2] [8.1] A call with a sequence is answered at its deadline, and the sequence is closed', async () => {
    const [serving, script] = await start();
    let ended = false;
    async function* endless(): AsyncGenerator<Batch> {
      try {
        for (;;) {
          await new Promise((resolve) => setTimeout(resolve, 4));
          yield letters('a');
        }
      } finally {
        ended = true;
      }
    }
    const call = outcomeOf(serving.batchedRun(endless(), { timeout: 10 }));
    script.release(upper);

    await later(16);

    expect([call.outcome, ended, timers()]).toEqual([late(10), true, 0]);
  });

  describe('the timeout of the serving', () => {
    it.each(['batchedRun', 'run'] as const)(
      '[7.2] The timeout of the serving applies to a %s call without one of its own',
      async (method) => {
        const [serving, script] = await start({ timeout: 10 });
        const calls = [
          serving[method]('a'),
          serving[method]('b', { timeout: 5 }),
          serving[method]('c', { timeout: 15 }),
        ].map(outcomeOf);

        await later(5);
        expect(calls.map(({ outcome }) => outcome)).toEqual([undefined, late(5), undefined]);
        await later(5);
        expect(calls.map(({ outcome }) => outcome)).toEqual([late(10), late(5), undefined]);
        await later(5);
        expect(calls.map(({ outcome }) => outcome)).toEqual([late(10), late(5), late(15)]);
        script.release(upper);
      },
    );

    it('[7.2] The timeout of the serving does not apply to streams', async () => {
      const [serving, script] = await start({ timeout: 10 });
      const call = outcomeOf(iterated(serving.stream('a')));
      await later(1000);
      expect(call.outcome).toBeUndefined();

      script.release(upper);
      await turn();
      expect(call.outcome).toMatchObject([{ output: 'A' }]);
    });

    it.each([-1, NaN, '10', 2 ** 31])(
      '[7.2] [1.9] A timeout of %p is refused at boot',
      async (timeout) => {
        await expect(start({ timeout: timeout as number })).rejects.toThrow('option "timeout" is');
      },
    );
  });

  describe('a stream with a timeout', () => {
    it('[7.2] [8.2] A stream ends at its deadline, after the outputs before it', async () => {
      const [serving, script] = await start({ batchSize: 1 });
      const events: unknown[] = [];
      const reading = (async () => {
        for await (const { output } of serving.stream(letters('abc'), { timeout: 10 })) {
          events.push(output);
        }
      })();
      const call = outcomeOf(reading);
      await turn();
      script.batches[0]!.finish(upper);
      await later(9);
      expect([events, call.outcome]).toEqual([[['A']], undefined]);

      await later(1);
      expect([events, call.outcome]).toEqual([[['A']], late(10)]);
      expect(serving.queued).toBe(0);
      script.release(upper);
    });

    it('[7.2] [8.2] A stream with a slow reader ends at its deadline, after the outputs that had arrived', async () => {
      const [serving, script] = await start({ batchSize: 1 });
      script.release(upper);
      const reader = serving.stream(letters('abcdefgh'), { timeout: 10 })[Symbol.asyncIterator]();
      const outputs = [await reader.next()];
      await later(10);

      await expect(
        (async () => {
          for (;;) {
            outputs.push(await reader.next());
          }
        })(),
      ).rejects.toEqual(late(10));

      expect(outputs.length).toBeLessThanOrEqual(3);
      expect(timers()).toBe(0);
    });

    it('[7.2] [8.2] A stream with a timeout leaves no timer after its end or after its reader has left', async () => {
      const [serving, script] = await start({ batchSize: 1 });
      script.release(upper);

      await iterated(serving.stream(letters('abc'), { timeout: 1000 }));
      expect(timers()).toBe(0);
      for await (const _ of serving.stream(letters('abc'), { timeout: 1000 })) {
        break;
      }
      expect(timers()).toBe(0);
    });

    it('[7.2] [1.5] A stream ends at its deadline while its input is preprocessed', async () => {
      const [serving] = await start({
        preprocess: () => new Promise((resolve) => setTimeout(() => resolve({ batch: 'a' }), 50)),
      });
      const call = outcomeOf(iterated(serving.stream('a', { timeout: 10 })));

      await later(10);
      expect(call.outcome).toEqual(late(10));
      await later(40);
    });
  });
});
