import { describe, expect, it } from '@jest/globals';
import {
  Batch,
  type BatchContext,
  BatchFailedError,
  createServing,
  DONE,
  InvalidOutputError,
  type LocalServing,
  type ServingDefinition,
} from 'nestjs-serving';
import { BatchScript, recordBatches, settle } from 'nestjs-serving/testing';
import { floats } from '../../fixtures/values/tensors.js';
import { iterated, outputsOf } from '../../fixtures/async/streams.js';
import { useServings } from '../../fixtures/serving/use-servings.js';
import { later, useVirtualTime } from '../../fixtures/async/virtual-time.js';

const rowsOf = (...rows: unknown[]): Batch => Batch.stack(rows);

const settled = (serving: LocalServing, rows: readonly string[]) =>
  Promise.allSettled(rows.map((row) => serving.batchedRun(row)));

describe('A batch that fails', () => {
  useVirtualTime();
  const startServing = useServings();

  /** A serving that fails for rows that start with "bad", and the batches that it ran. */
  async function start(
    options: Partial<ServingDefinition> = {},
  ): Promise<[LocalServing, string[][]]> {
    const ran: string[][] = [];
    const serving = await startServing<unknown>({
      name: 'picky',
      recovery: { idempotent: true },
      model: {
        useFactory: () => (rows: string[]) => {
          ran.push(rows);
          const bad = rows.find((row) => row.startsWith('bad'));
          if (bad) {
            throw new Error(`${bad} is no good`);
          }
          return rows.map((row) => row.toUpperCase());
        },
      },
      ...options,
    });
    return [serving, ran];
  }

  it('[6.4] A failed batch fails only the caller of the faulty row', async () => {
    const [serving, ran] = await start();

    const replies = await settled(serving, ['a', 'b', 'c', 'bad', 'e', 'f']);

    expect(replies.filter(({ status }) => status === 'fulfilled')).toHaveLength(5);
    expect(replies[3]).toMatchObject({ reason: expect.any(BatchFailedError) });
    expect(replies[3]).toMatchObject({
      reason: {
        message: 'Serving "picky": a batch of 1 row failed: bad is no good',
        cause: new Error('bad is no good'),
      },
    });
    expect(ran).toEqual([
      ['a', 'b', 'c', 'bad', 'e', 'f'],
      ['a', 'b', 'c'],
      ['bad', 'e', 'f'],
      ['bad', 'e'],
      ['f'],
      ['bad'],
      ['e'],
    ]);
  });

  it('[6.4] A failed batch with two faulty rows fails their callers', async () => {
    const [serving] = await start();
    const rows = Array.from({ length: 32 }, (_, i) => ([5, 27].includes(i) ? `bad ${i}` : `${i}`));

    const replies = await settled(serving, rows);

    expect(replies.flatMap(({ status }, i) => (status === 'rejected' ? [i] : []))).toEqual([5, 27]);
  });

  it('[6.4] When every row is faulty, all callers fail after a number of runs bounded by the logarithm of the rows', async () => {
    const [serving, ran] = await start();

    const replies = await settled(
      serving,
      Array.from({ length: 32 }, () => 'bad'),
    );

    expect(replies.every(({ status }) => status === 'rejected')).toBe(true);
    expect(ran.length).toBeLessThanOrEqual(1 + 4 * 5);
  });

  it('[6.4] A faulty row fails all of its own call', async () => {
    const [serving, ran] = await start();

    const replies = await Promise.allSettled([
      serving.batchedRun(rowsOf('a', 'bad', 'c', 'd')),
      serving.batchedRun(rowsOf('e', 'f')),
    ]);

    expect(replies).toMatchObject([
      { status: 'rejected' },
      { status: 'fulfilled', value: ['E', 'F'] },
    ]);
    // The rest of a failed call does not run again.
    expect(ran.at(-1)).not.toContain('d');
  });

  it('[6.4] [4.5] The rows of a call are joined in their order after they were retried in different batches', async () => {
    const [serving] = await start({ batchSize: 8 });

    const replies = await Promise.allSettled([
      serving.batchedRun(rowsOf(...'abcde'.split(''))),
      serving.batchedRun('bad'),
      serving.batchedRun(rowsOf(...'fghijkl'.split(''))),
    ]);

    expect(replies).toMatchObject([
      { value: 'ABCDE'.split('') },
      { status: 'rejected' },
      { value: 'FGHIJKL'.split('') },
    ]);
  });

  it('[6.4] A failed batch of tensors is retried with the rows of each half', async () => {
    const sizes: number[] = [];
    const serving = await startServing<unknown>({
      name: 'picky',
      recovery: { idempotent: true },
      model: {
        useFactory: () => (x: ReturnType<typeof floats>) => {
          sizes.push(x.dims[0]!);
          if ((x.data as Float32Array).includes(-1)) {
            throw new RangeError('negative');
          }
          return x;
        },
      },
    });

    const replies = await Promise.allSettled(
      [1, 2, -1, 4].map((value) =>
        serving.batchedRun(Batch.concatenate([floats([1, 1], [value])])),
      ),
    );

    expect(replies.map(({ status }) => status)).toEqual([
      'fulfilled',
      'fulfilled',
      'rejected',
      'fulfilled',
    ]);
    expect(replies[3]).toMatchObject({ value: floats([1, 1], [4]) });
    expect(sizes).toEqual([4, 2, 2, 1, 1]);
  });

  it('[6.4] [6.3] A batch with an output of the wrong length is not retried, since no row is at fault', async () => {
    const [serving] = await start({
      model: { useFactory: () => (rows: string[]) => (rows.includes('bad') ? [] : rows) },
    });

    const replies = await settled(serving, ['a', 'bad', 'c']);

    expect(replies.map((reply) => (reply as PromiseRejectedResult).reason as unknown)).toEqual(
      replies.map(() => expect.any(InvalidOutputError)),
    );
  });

  it('[6.2] A batch with errors in place of rows is not retried', async () => {
    const ran: number[] = [];
    const [serving] = await start({
      model: {
        useFactory: () => (rows: string[]) => {
          ran.push(rows.length);
          return rows.map((row) => (row === 'bad' ? new RangeError(row) : row));
        },
      },
    });

    expect(await settled(serving, ['a', 'bad'])).toMatchObject([
      { value: 'a' },
      { reason: expect.any(RangeError) },
    ]);
    expect(ran).toEqual([2]);
  });

  it.each([{ idempotent: false }, {}, { idempotent: true, isolateFailures: false }])(
    '[6.4] [6.1] A failed batch fails all of its callers in a serving with %j',
    async (recovery) => {
      const [serving, ran] = await start({ recovery });

      const replies = await settled(serving, ['a', 'bad']);

      expect(replies.map(({ status }) => status)).toEqual(['rejected', 'rejected']);
      expect(ran).toEqual([['a', 'bad']]);
    },
  );

  it('[6.4] [1.9] Isolating failures is refused for a serving that is not idempotent', () => {
    const isolating = {
      name: 'once',
      recovery: { isolateFailures: true },
      model: { useFactory: () => () => [] },
    };

    expect(() => createServing(isolating)).toThrow(
      'recovery.isolateFailures runs batches again, and needs recovery.idempotent: true',
    );
    expect(() =>
      createServing({ ...isolating, recovery: { isolateFailures: true, idempotent: true } }),
    ).not.toThrow();
  });

  it('[6.4] [7.1] Retried rows wait ahead of later rows and beyond the queue limit', async () => {
    const script = new BatchScript<string>();
    const serving = await startServing<unknown>(
      script.createServing({
        name: 'picky',
        recovery: { idempotent: true },
        batchSize: 2,
        queue: { maxRows: 2 },
      }),
    );
    const replies = settled(serving, ['a', 'b']);
    const batch = await script.next();
    await later(1);
    const after = settled(serving, ['c', 'd']);
    await settle();

    batch.fail(new Error('no good'));
    await settle();

    expect(script.rows).toEqual([['a']]);
    expect(serving.queued).toBe(3);
    script.release((rows) => rows);
    expect([await replies, await after].flat().map(({ status }) => status)).toEqual(
      Array.from({ length: 4 }, () => 'fulfilled'),
    );
    expect(serving.queued).toBe(0);
  });

  it('[6.4] [12.2] A failed batch is reported with its error, and its halves with the reason "retry"', async () => {
    const [serving] = await start();
    const batches = recordBatches(serving);

    await settled(serving, ['a', 'bad']);

    expect(batches.map(({ reason, rows }) => `${reason} ${rows}`)).toEqual([
      'idle 2',
      'retry 1',
      'retry 1',
    ]);
    expect(batches.map(({ error }) => error !== undefined)).toEqual([true, false, true]);
  });

  it('[7.3] Rows of cancelled calls are not retried', async () => {
    const script = new BatchScript<string>();
    const serving = await startServing<unknown>(
      script.createServing({ name: 'picky', recovery: { idempotent: true } }),
    );
    const leaving = new AbortController();
    const left = [serving.batchedRun('a', leaving), serving.batchedRun('b', leaving)];
    const reply = serving.batchedRun('c');
    const batch = await script.next();
    leaving.abort(new Error('gone'));
    expect((await Promise.allSettled(left)).map(({ status }) => status)).toEqual([
      'rejected',
      'rejected',
    ]);

    batch.fail(new Error('no good'));
    const again = await script.next();

    expect([again.rows, script.batches]).toEqual([['c'], [again]]);
    again.finish(['C']);
    expect(await reply).toBe('C');
  });

  it('[9.3] Retries end before the serving has closed', async () => {
    const script = new BatchScript<string>();
    const serving = await startServing<unknown>(
      script.createServing({ name: 'picky', recovery: { idempotent: true } }),
    );
    const replies = settled(serving, ['a', 'b']);
    const batch = await script.next();
    const closed = serving.close();

    batch.fail(new Error('no good'));
    (await script.next()).finish(['A']);
    (await script.next()).finish(['B']);

    expect(await replies).toMatchObject([{ value: 'A' }, { value: 'B' }]);
    await closed;
  });

  it('[9.3] A failed batch of a closing serving that does not drain fails with the closed error', async () => {
    const script = new BatchScript<string>();
    const serving = await startServing<unknown>(
      script.createServing({
        name: 'picky',
        recovery: { idempotent: true },
        shutdown: { drain: false },
      }),
    );
    const replies = settled(serving, ['a', 'b']);
    const batch = await script.next();
    const closed = serving.close();

    batch.fail(new Error('no good'));

    const reason = expect.objectContaining({ code: 'SERVING_CLOSED' });
    expect(await replies).toMatchObject([{ reason }, { reason }]);
    expect(script.batches).toEqual([]);
    await closed;
  });

  describe('in a stream', () => {
    it('[6.4] [8.2] A stream whose batch was retried gets its output in the order of the rows', async () => {
      const [serving] = await start({ batchSize: 8 });

      const events = iterated(serving.stream(rowsOf(...'abc'.split(''))));
      const bad = serving.batchedRun('bad');

      await expect(bad).rejects.toThrow('no good');
      expect(outputsOf(await events).flat()).toEqual('ABC'.split(''));
    });

    it("[FR12] [6.4] [8.3] After a hook only its caller fails with the batch, and the others' rows run again", async () => {
      const script = new BatchScript<string>();
      const serving = await startServing<unknown>(
        script.createServing({ name: 'picky', recovery: { idempotent: true } }),
      );
      const events = iterated(serving.stream('a', { hooks: ['layer'] }));
      const other = serving.batchedRun('b');
      const batch = await script.next();
      batch.emit('layer', [1, 2]);

      batch.fail(new Error('no good'));

      await expect(events).rejects.toThrow('no good');
      const again = await script.next();
      expect(again.rows).toEqual(['b']);
      again.finish(['B']);
      expect(await other).toBe('B');
    });

    it('[FR12] [6.4] [8.4] After a step the callers who read steps fail, and the rows of others run again from their first step', async () => {
      const script = new BatchScript<string>();
      const serving = await startServing<unknown>(
        script.createServing({ name: 'picky', recovery: { idempotent: true } }),
      );
      const events = iterated(serving.stream('a'));
      const replies = [serving.batchedRun('b'), serving.batchedRun(rowsOf('c', 'd'))];
      const batch = await script.next();
      expect(batch.rows).toEqual(['b', 'c', 'd', 'a']);
      batch.step(['B', 'C', DONE, 'A']);

      batch.fail(new Error('no good'));

      await expect(events).rejects.toThrow('no good');
      const again = await script.next();
      expect(again.rows).toEqual(['b', 'c', 'd']);
      again.step(['b', 'c', 'd']);
      again.end();
      expect(await Promise.all(replies)).toEqual([['b'], [['c'], ['d']]]);
      expect(script.batches).toEqual([]);
    });

    it('[FR12] A row whose generator had ended before the batch failed keeps its answer', async () => {
      const script = new BatchScript<string>();
      const serving = await startServing<unknown>(
        script.createServing({ name: 'picky', recovery: { idempotent: true } }),
      );
      const replies = ['a', 'b'].map((row) => serving.batchedRun(row));
      const batch = await script.next();
      batch.step(['A', 'B']);
      batch.step([DONE, 'B']);

      batch.fail(new Error('no good'));

      expect(await replies[0]).toEqual(['A']);
      const again = await script.next();
      expect(again.rows).toEqual(['b']);
      again.step(['b']);
      again.end();
      expect(await replies[1]).toEqual(['b']);
    });

    it('[FR12] The row of another caller is the faulty one also after a hook: it fails alone', async () => {
      const serving = await startServing<unknown>({
        name: 'picky',
        recovery: { idempotent: true },
        model: {
          useFactory:
            () =>
            (rows: string[], { emit }: BatchContext) => {
              emit('layer', rows);
              if (rows.includes('bad')) {
                throw new Error('no good');
              }
              return rows;
            },
        },
      });
      const hooked = Promise.allSettled([iterated(serving.stream('hooked', { hooks: ['layer'] }))]);
      const replies = await settled(serving, ['a', 'bad', 'c', 'd']);
      expect(await hooked).toMatchObject([{ status: 'rejected' }]);
      expect(replies.map(({ status }) => status)).toEqual([
        'fulfilled',
        'rejected',
        'fulfilled',
        'fulfilled',
      ]);
    });

    it('[6.4] [8.3] A request with hooks is separated from others before its first hook, and never split', async () => {
      const sizes: string[] = [];
      const serving = await startServing<unknown>({
        name: 'picky',
        recovery: { idempotent: true },
        model: {
          useFactory:
            () =>
            (rows: string[], { emit }: BatchContext) => {
              sizes.push(rows.join(''));
              if (rows.includes('x')) {
                throw new Error('x is no good');
              }
              emit('layer', rows);
              return rows;
            },
        },
      });

      const alone = serving.batchedRun('x');
      const hooked = iterated(serving.stream(rowsOf(...'abc'.split('')), { hooks: ['layer'] }));

      await expect(alone).rejects.toThrow('x is no good');
      expect(outputsOf(await hooked)).toEqual([{ layer: ['a', 'b', 'c'] }, ['a', 'b', 'c']]);
      expect(sizes).toEqual(['xabc', 'x', 'abc']);
    });
  });

  describe('in an inline run', () => {
    it('[6.4] [3.1] A failed inline run is retried in halves and rejects with the error of the faulty row', async () => {
      const [serving, ran] = await start();

      await expect(serving.run(rowsOf('a', 'b', 'bad'))).rejects.toThrow('bad is no good');
      expect(ran.slice(0, 2)).toEqual([
        ['a', 'b', 'bad'],
        ['a', 'b'],
      ]);
    });

    it('[6.4] [3.1] An inline run that is too large for memory is answered in parts', async () => {
      const [serving] = await start({
        model: {
          useFactory: () => (rows: string[]) => {
            if (rows.length > 2) {
              throw new Error('out of memory');
            }
            return rows;
          },
        },
        recovery: { idempotent: true, isolateFailures: false },
      });

      expect(await serving.run(rowsOf(...'abcdefg'.split('')))).toEqual('abcdefg'.split(''));
    });

    it('[7.3] [3.1] A failed inline run is not retried after its caller has left', async () => {
      const script = new BatchScript<string>();
      const serving = await startServing<unknown>(
        script.createServing({ name: 'picky', recovery: { idempotent: true } }),
      );
      const leaving = new AbortController();
      const left = serving.run(rowsOf('a', 'b'), leaving);
      const batch = await script.next();
      leaving.abort(new Error('gone'));
      await expect(left).rejects.toThrow('gone');

      batch.fail(new Error('no good'));
      await settle();

      expect(script.batches).toEqual([]);
    });
  });
});
