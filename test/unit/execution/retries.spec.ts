import { describe, expect, it } from '@jest/globals';
import {
  Batch,
  type LocalServing,
  PartitionLostError,
  RunTimeoutError,
  type ServingOptions,
  ServingUnavailableError,
} from 'nestjs-serving';
import { recordBatches } from 'nestjs-serving/testing';
import { NotStartedError } from '../../../lib/core/partitions/partition.js';
import { iterated, outputsOf } from '../../fixtures/async/streams.js';
import { type Scripted, useScripts } from '../../fixtures/serving/use-scripts.js';
import { later, turn, useVirtualTime } from '../../fixtures/async/virtual-time.js';

const letters = (text: string): Batch => Batch.stack(text.split(''));
const upper = (rows: readonly string[]): string[] => rows.map((row) => row.toUpperCase());

const settled = (serving: LocalServing, rows: string) =>
  Promise.allSettled(rows.split('').map((row) => serving.batchedRun(row)));

describe('A batch whose partition is lost', () => {
  useVirtualTime();
  const startServing = useScripts();
  const start = (options: Partial<ServingOptions<string | Batch>> = {}): Promise<Scripted> =>
    startServing({ name: 'fragile', recovery: { idempotent: true }, ...options });

  it('[5.6] A batch whose partition is lost runs again whole, unnoticed by its callers', async () => {
    const { serving, script } = await start();
    const replies = settled(serving, 'abc');

    (await script.next()).crash({ restarts: true });
    const again = await script.next();
    expect(again.rows).toEqual(['a', 'b', 'c']);
    again.finish(upper);

    expect(await replies).toMatchObject([{ value: 'A' }, { value: 'B' }, { value: 'C' }]);
  });

  it('[5.6] A batch that lost its partition twice runs again in halves, since one of its rows may be the cause', async () => {
    const { serving, script } = await start();
    const replies = settled(serving, 'abcd');
    (await script.next()).crash({ restarts: true });
    (await script.next()).crash({ restarts: true });

    const first = await script.next();
    expect(first.rows).toEqual(['a', 'b']);
    first.crash({ restarts: true });
    const second = await script.next();
    expect(second.rows).toEqual(['c', 'd']);
    second.finish(upper);

    const lost = { reason: expect.any(PartitionLostError) };
    expect(await replies).toMatchObject([lost, lost, { value: 'C' }, { value: 'D' }]);
    expect(script.batches).toEqual([]);
  });

  it.each([
    { retries: 0, runs: 1 },
    { retries: 1, runs: 2 },
    { retries: 5, runs: 6 },
  ])(
    '[5.6] A batch runs again at most $retries times with that number of retries',
    async ({ retries, runs }) => {
      const { serving, script } = await start({ recovery: { idempotent: true, retries } });
      const reply = serving.batchedRun('a');
      for (let run = 0; run < runs; run++) {
        (await script.next()).crash({ restarts: true });
      }

      await expect(reply).rejects.toThrow(PartitionLostError);
      expect(script.batches).toEqual([]);
    },
  );

  it.each([{ idempotent: false }, {}])(
    '[5.6] A batch whose partition is lost fails its callers in a serving with %j',
    async (recovery) => {
      const { serving, script } = await start({ recovery });
      const replies = settled(serving, 'ab');

      (await script.next()).crash({ restarts: true });

      const lost = { reason: expect.any(PartitionLostError) };
      expect(await replies).toMatchObject([lost, lost]);
      expect(script.batches).toEqual([]);
    },
  );

  it('[5.6] A batch runs on another partition when its own does not return, and so do queued rows', async () => {
    const { serving, script } = await start({ partitions: 2, batchSize: 2 });
    const replies = settled(serving, 'abcdef');
    await turn();
    expect(script.rows).toEqual([
      ['a', 'b'],
      ['c', 'd'],
    ]);

    script.batches[0]!.crash();
    await turn();
    expect(script.rows).toEqual([['c', 'd']]);
    script.batches[0]!.finish(upper);
    await turn();

    expect(script.batches.map(({ partition, rows }) => [partition, rows])).toEqual([
      [1, ['a', 'b']],
    ]);
    script.release(upper);
    expect((await replies).map((reply) => 'value' in reply && reply.value)).toEqual(
      'ABCDEF'.split(''),
    );
  });

  it('[5.6] A batch fails when all partitions are lost', async () => {
    const { serving, script } = await start({ partitions: 2 });
    const reply = serving.batchedRun('a');

    (await script.next()).crash();
    (await script.next()).crash();

    await expect(reply).rejects.toThrow(ServingUnavailableError);
    await expect(serving.batchedRun('b')).rejects.toThrow(ServingUnavailableError);
  });

  it('[5.6] A batch that was ended for exceeding its run time runs again', async () => {
    const { serving, script } = await start();
    const reply = serving.batchedRun('a');

    (await script.next()).fail(new RunTimeoutError('the batch ran for too long'));
    (await script.next()).finish(upper);

    expect(await reply).toBe('A');
  });

  it('[5.6] A batch that had not begun runs again without limit, also in a serving that is not idempotent', async () => {
    const { serving, script } = await start({ recovery: { idempotent: false } });
    const replies = settled(serving, 'ab');

    for (let run = 0; run < 10; run++) {
      const batch = await script.next();
      expect(batch.rows).toEqual(['a', 'b']);
      batch.fail(new NotStartedError('the process was gone'));
    }
    (await script.next()).finish(upper);

    expect(await replies).toMatchObject([{ value: 'A' }, { value: 'B' }]);
  });

  it('[5.6] [4.5] The rows of a call keep their order when their batches were retried', async () => {
    const { serving, script } = await start({ batchSize: 4, partitions: 2 });
    const reply = serving.batchedRun(letters('abcdefgh'));
    await turn();

    script.batches[0]!.crash({ restarts: true });
    await turn();
    script.batches[1]!.crash({ restarts: true });
    await turn();
    script.release(upper);

    expect(await reply).toEqual('ABCDEFGH'.split(''));
  });

  it('[5.6] [12.2] Each run of a batch is reported, lost ones with their error', async () => {
    const { serving, script } = await start();
    const batches = recordBatches(serving);
    const reply = serving.batchedRun('a');

    (await script.next()).crash({ restarts: true });
    await later(7);
    (await script.next()).finish(upper);
    await reply;
    await turn();

    expect(
      batches.map(({ reason, error, rows }) => [reason, (error as Error | undefined)?.name, rows]),
    ).toEqual([
      ['idle', 'PartitionLostError', 1],
      ['retry', undefined, 1],
    ]);
  });

  it('[5.6] [7.2] Rows whose deadline has passed do not run again', async () => {
    const { serving, script } = await start();
    const late = serving.batchedRun('a', { timeout: 10 });
    const reply = serving.batchedRun('b');
    const batch = await script.next();
    const answered = expect(late).rejects.toMatchObject({ code: 'SERVING_DEADLINE_EXCEEDED' });
    await later(10);
    await answered;

    batch.crash({ restarts: true });
    const again = await script.next();

    expect(again.rows).toEqual(['b']);
    again.finish(upper);
    expect(await reply).toBe('B');
  });

  it('[5.6] [8.2] A stream receives the rows of retried batches', async () => {
    const { serving, script } = await start({ batchSize: 2 });
    const events = iterated(serving.stream(letters('abcd')));

    (await script.next()).crash({ restarts: true });
    script.release(upper);

    expect(outputsOf(await events)).toEqual([
      ['A', 'B'],
      ['C', 'D'],
    ]);
  });

  it('[5.6] [8.3] A batch with a call with hooks runs again whole, without limit, before its first hook', async () => {
    const { serving, script } = await start({ recovery: { idempotent: true, retries: 3 } });
    const events = iterated(serving.stream(letters('abc'), { hooks: ['layer'] }));
    for (let run = 0; run < 3; run++) {
      const lost = await script.next();
      expect(lost.size).toBe(3);
      lost.crash({ restarts: true });
    }

    const last = await script.next();
    last.emit('layer', [1, 2, 3]);
    last.finish(upper);

    expect(outputsOf(await events)).toEqual([{ layer: [1, 2, 3] }, ['A', 'B', 'C']]);
  });

  it.each(['hook', 'step'])(
    '[5.6] [8.3] [8.4] A batch does not run again after its first %s reached callers',
    async (what) => {
      const { serving, script } = await start();
      const events = iterated(serving.stream('a', { hooks: ['layer'] }));
      const batch = await script.next();
      if (what === 'hook') {
        batch.emit('layer', [1]);
      } else {
        batch.step(['A']);
      }

      batch.crash({ restarts: true });

      await expect(events).rejects.toThrow(PartitionLostError);
      expect(script.batches).toEqual([]);
    },
  );

  it('[5.6] [3.1] An inline run whose partition is lost runs again', async () => {
    const { serving, script } = await start({ batchSize: 2 });
    const reply = serving.run(letters('abc'));

    (await script.next()).crash({ restarts: true });
    script.release(upper);

    expect(await reply).toEqual('ABC'.split(''));
  });

  it('[5.6] [3.1] An inline run fails when its partition does not return', async () => {
    const { serving, script } = await start();
    const reply = serving.run('a');

    (await script.next()).crash();

    await expect(reply).rejects.toThrow(ServingUnavailableError);
  });

  it('[5.6] [9.3] A batch whose partition is lost runs again while the serving closes', async () => {
    const { serving, script } = await start();
    const reply = serving.batchedRun('a');
    const batch = await script.next();
    const closed = serving.close();

    batch.crash({ restarts: true });
    (await script.next()).finish(upper);

    expect(await reply).toBe('A');
    await closed;
  });

  it('[5.6] A batch that ran out of memory runs again in halves, also when failures are not isolated', async () => {
    const { serving, script } = await start({
      recovery: { idempotent: true, isolateFailures: false },
    });
    const replies = settled(serving, 'abcd');
    const sizes: number[] = [];

    for (let run = 0; run < 3; run++) {
      const batch = await script.next();
      sizes.push(batch.size);
      if (batch.size > 2) {
        batch.fail(new Error('CUDA out of memory. Tried to allocate 2.00 GiB'));
      } else {
        batch.finish(upper);
      }
    }

    expect(sizes).toEqual([4, 2, 2]);
    expect((await replies).every(({ status }) => status === 'fulfilled')).toBe(true);
  });
});
