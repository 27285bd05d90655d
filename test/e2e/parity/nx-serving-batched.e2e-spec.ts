import { describe, expect, it, jest } from '@jest/globals';
import {
  Batch,
  InvalidBatchError,
  type LocalServing,
  type ServingDefinition,
  Tensor,
} from 'nestjs-serving';
import type { BatchResult } from '../../../lib/core/partitions/batch-function.js';
import type { HandlerResult } from '../../../lib/core/partitions/engine.js';
import { recordBatches } from 'nestjs-serving/testing';
import { doubled, doublingClass, goOn } from '../../fixtures/batching/doubling.js';
import { HeldFunction } from '../../fixtures/batching/held-function.js';
import { floats } from '../../fixtures/values/tensors.js';
import { useServings } from '../../fixtures/serving/use-servings.js';
import { later, timers, turn, useVirtualTime } from '../../fixtures/async/virtual-time.js';
import { worker } from '../../fixtures/partitions/worker.js';

/** A batch of this many rows with consecutive numbers from `first` on. */
const numbers = (first: number, rows: number): Batch =>
  Batch.concatenate([
    floats(
      [rows],
      Array.from({ length: rows }, (_, i) => first + i),
    ),
  ]);
const doubledNumbers = (first: number, rows: number): unknown =>
  doubled(numbers(first, rows).consume());

describe('Batched runs, like Nx.Serving', () => {
  useVirtualTime();
  const serve = useServings();

  const held = async (
    options: Partial<ServingDefinition> = {},
  ): Promise<{ batches: HeldFunction<never>; serving: LocalServing }> => {
    const batches = new HeldFunction<never>();
    return {
      batches,
      serving: await serve({ name: 'held', model: { useFactory: batches.useFactory }, ...options }),
    };
  };

  describe.each<[string, Partial<ServingDefinition>]>([
    ['a function', { model: { useFactory: () => doubled } }],
    ['a class', { model: { useClass: doublingClass().Doubling } }],
    ['a file', { model: { useFile: worker('doubling') } }],
  ])('%s', (_, how) => {
    const definition = (options: Partial<ServingDefinition>) =>
      ({ name: 'batched', ...how, ...options }) as ServingDefinition;

    it('[3.2] A call with one row is answered', async () => {
      const serving = await serve(definition({}));

      expect(await serving.batchedRun(Batch.stack([floats([3], [1, 2, 3])]))).toEqual(
        floats([1, 3], [2, 4, 6]),
      );
    });

    it('[3.2] [4.1] Two calls with 2 rows run as one full batch of 4 before the timeout', async () => {
      const serving = await serve(definition({ batchSize: 4, batchTimeout: 10_000 }));
      const batches = recordBatches(serving);

      const replies = await Promise.all(
        [11, 21].map((first) => serving.batchedRun(numbers(first, 2))),
      );
      await turn();

      expect(replies).toEqual([doubledNumbers(11, 2), doubledNumbers(21, 2)]);
      expect(batches.map(({ rows, padding, reason }) => [rows, padding, reason])).toEqual([
        [4, 0, 'full'],
      ]);
    });

    it.each([
      [6, [3, 3]],
      [5, [3, 2]],
    ])('[4.5] A call with %i rows runs as batches of %j', async (rows, sizes) => {
      const serving = await serve(definition({ batchSize: 3, batchTimeout: 100 }));
      const batches = recordBatches(serving);

      const reply = serving.batchedRun(numbers(1, rows));
      await later(100);

      expect(await reply).toEqual(doubledNumbers(1, rows));
      await turn();
      expect(batches.map((batch) => batch.rows)).toEqual(sizes);
      expect(batches.every(({ padding }) => padding === 0)).toBe(true);
    });

    it('[1.7] [4.5] Calls with 3, 4 and 5 containers run as two batches of 6, and each gets its own rows', async () => {
      const serving = await serve(definition({ batchSize: 6, batchTimeout: 10_000 }));
      const batches = recordBatches(serving);
      const inputs = [numbers(11, 3), numbers(21, 4), numbers(31, 5)].map((rows) => [
        rows.consume(),
        { b: rows.consume() },
      ]);

      const replies = await Promise.all(inputs.map((input) => serving.batchedRun(input)));
      await turn();

      expect(replies).toEqual(inputs.map(doubled));
      expect(batches.map(({ rows }) => rows)).toEqual([6, 6]);
    });

    it('[1.5] [3.2] Each call of a shared batch gets its own output, metadata and info', async () => {
      const serving = await serve(
        definition({
          batchSize: 4,
          batchTimeout: 10_000,
          preprocess: (input) => ({ batch: Batch.stack(input as Tensor[]), info: input }),
          postprocess: (output, { info }) => ({ output, info }),
        }),
      );
      const inputs = [1, 5].map((n) => [floats([2], [n, n + 1]), floats([2], [n + 2, n + 3])]);

      expect(await Promise.all(inputs.map((input) => serving.batchedRun(input)))).toEqual([
        { output: floats([2, 2], [2, 4, 6, 8]), info: inputs[0] },
        { output: floats([2, 2], [10, 12, 14, 16]), info: inputs[1] },
      ]);
    });

    it('[2.4] Full and partial batches are padded on request, without results of padding', async () => {
      const serving = await serve(definition({ batchSize: [4], batchTimeout: 100 }));
      const batches = recordBatches(serving);
      const partial = Promise.all(
        [11, 21].map((first) => serving.batchedRun(Batch.stack([floats([2], [first, first + 1])]))),
      );
      await later(100);

      expect(await partial).toEqual([floats([1, 2], [22, 24]), floats([1, 2], [42, 44])]);
      expect(await serving.batchedRun(numbers(1, 4))).toEqual(doubledNumbers(1, 4));
      await turn();
      expect(batches.map(({ rows, padding }) => [rows, padding])).toEqual([
        [2, 2],
        [4, 0],
      ]);
    });
  });

  it('[4.6] A class receives the rows of all callers in their order of arrival', async () => {
    const { Doubling, batches } = doublingClass();
    const serving = await serve({ name: 'class', model: { useClass: Doubling }, batchSize: 4 });

    await Promise.all(
      [numbers(1, 1), numbers(2, 2), numbers(4, 1)].map((rows) => serving.batchedRun(rows)),
    );

    expect(batches.map(({ batch, partition }) => [batch.consume(), partition])).toEqual([
      [floats([4], [1, 2, 3, 4]), 0],
    ]);
  });

  describe('windows', () => {
    it('[4.1] A window waits for its timeout, and later rows do not reset it', async () => {
      const { serving, batches } = await held({ batchSize: 4, batchTimeout: 100 });
      const replies = [serving.batchedRun(numbers(1, 1))];
      await later(99);
      replies.push(serving.batchedRun(numbers(2, 1)));
      await turn();
      expect(batches.rows).toEqual([]);
      await later(1);

      expect(batches.rows).toEqual([floats([2], [1, 2])]);
      await goOn(batches);
      await Promise.all(replies);
    });

    it('[4.1] The timer of a window that filled up is removed, and the next window has a full timeout', async () => {
      const { serving, batches } = await held({ batchSize: 2, batchTimeout: 100 });
      const first = serving.batchedRun(numbers(1, 1));
      await later(60);
      const filling = serving.batchedRun(numbers(2, 1));
      await turn();
      await goOn(batches);
      await Promise.all([first, filling]);
      expect(timers()).toBe(0);

      const next = serving.batchedRun(numbers(3, 1));
      await later(99);
      expect(batches.rows).toEqual([]);
      await later(1);
      expect(batches.rows).toEqual([floats([1], [3])]);
      await goOn(batches);
      await next;
    });

    it('[4.5] [4.6] A call of exactly the batch size fills the waiting window instead of flushing it', async () => {
      const { serving, batches } = await held({ batchSize: 3, batchTimeout: 100 });
      const replies = [serving.batchedRun(numbers(1, 1)), serving.batchedRun(numbers(2, 3))];
      await turn();
      const first = batches.rows;
      await goOn(batches);
      await later(100);

      expect([...first, ...batches.rows]).toEqual([floats([3], [1, 2, 3]), floats([1], [4])]);
      await goOn(batches);
      expect(await Promise.all(replies)).toEqual([doubledNumbers(1, 1), doubledNumbers(2, 3)]);
    });

    it('[4.3] With a timeout of 0 a row runs at once on an idle partition, and rows gather while it is busy', async () => {
      const { serving, batches } = await held({ batchSize: 4, batchTimeout: 0 });
      const replies = [serving.batchedRun(numbers(1, 1))];
      await turn();
      expect(batches.rows).toEqual([floats([1], [1])]);
      for (const first of [2, 3, 4]) {
        replies.push(serving.batchedRun(numbers(first, 1)));
        await turn();
      }
      await goOn(batches);

      expect(batches.rows).toEqual([floats([3], [2, 3, 4])]);
      await goOn(batches);
      await Promise.all(replies);
    });

    it('[4.2] A window whose timeout passed while all partitions were busy keeps its place and takes more rows', async () => {
      const { serving, batches } = await held({
        batchSize: 2,
        batchTimeout: 100,
        batchKeys: ['a', 'b'],
      });
      const call = (first: number, key: string): Promise<unknown> =>
        serving.batchedRun(numbers(first, 1).withKey(key));
      const replies = [serving.batchedRun(numbers(1, 2).withKey('a')), call(3, 'a')];
      await later(100);
      replies.push(call(5, 'b'));
      await later(100);
      // Both windows wait, that of 'a' longer. It takes one more row and is still first.
      replies.push(call(4, 'a'));
      await turn();
      const order: unknown[] = [];
      for (let batch = 0; batch < 3; batch++) {
        order.push(batches.rows[0]);
        await goOn(batches);
      }

      expect(order).toEqual([floats([2], [1, 2]), floats([2], [3, 4]), floats([1], [5])]);
      expect(await Promise.all(replies)).toHaveLength(4);
    });

    it('[4.4] Full windows of all keys run in the order in which they filled up', async () => {
      const { serving, batches } = await held({
        batchSize: 2,
        batchTimeout: 10_000,
        batchKeys: ['a', 'b'],
      });
      const call = (first: number, rows: number, key: string): Promise<unknown> =>
        serving.batchedRun(numbers(first, rows).withKey(key));
      const replies = [call(1, 1, 'a'), call(3, 2, 'b'), call(2, 1, 'a'), call(5, 2, 'b')];
      const order: unknown[] = [];
      for (let batch = 0; batch < 3; batch++) {
        await turn();
        order.push(batches.rows[0]);
        await goOn(batches);
      }

      expect(order).toEqual([floats([2], [3, 4]), floats([2], [1, 2]), floats([2], [5, 6])]);
      await Promise.all(replies);
    });

    it('[4.2] [4.4] Calls with 2, 2 and 1 rows run one after the other on one partition, the last after its timeout', async () => {
      const { serving, batches } = await held({ batchSize: 2, batchTimeout: 100 });
      const replies = [numbers(1, 2), numbers(3, 2), numbers(5, 1)].map((rows) =>
        serving.batchedRun(rows),
      );
      const order: unknown[] = [];
      for (let batch = 0; batch < 3; batch++) {
        await later(50);
        expect(batches.batches).toHaveLength(1);
        order.push(batches.rows[0]);
        await goOn(batches);
      }

      expect(order).toEqual([floats([2], [1, 2]), floats([2], [3, 4]), floats([1], [5])]);
      expect(await Promise.all(replies)).toEqual([
        doubledNumbers(1, 2),
        doubledNumbers(3, 2),
        doubledNumbers(5, 1),
      ]);
    });
  });

  describe('keys', () => {
    it('[4.7] A full window of one key runs while that of another still waits for rows', async () => {
      const serving = await serve({
        name: 'keys',
        batchSize: 3,
        batchTimeout: 10_000,
        batchKeys: ['double', 'half'],
        model: {
          useFactory: ({ key }) =>
            key === 'double'
              ? doubled
              : (rows: Tensor) =>
                  new Tensor(
                    'float32',
                    [...(rows.data as Float32Array)].map((n) => n / 2),
                    rows.dims,
                  ),
        },
      });
      const answered = jest.fn();
      const waiting = serving.batchedRun(numbers(0, 2).withKey('double'));
      void waiting.then(answered);

      expect(await serving.batchedRun(numbers(0, 3).withKey('half'))).toEqual(
        floats([3], [0, 0.5, 1]),
      );
      expect(answered).not.toHaveBeenCalled();
      expect(await serving.batchedRun(numbers(9, 1).withKey('double'))).toEqual(floats([1], [18]));
      expect(await waiting).toEqual(floats([2], [0, 2]));
    });
  });

  describe('failures', () => {
    it('[6.1] A batch that throws fails its caller with the cause, and the next batch runs', async () => {
      const { serving, batches } = await held();
      const cause = new RangeError('oops');
      const failed = expect(serving.batchedRun(numbers(1, 3))).rejects.toMatchObject({
        code: 'SERVING_BATCH_FAILED',
        cause,
      });
      await turn();
      batches.next().fail(cause);
      await failed;

      const next = serving.batchedRun(numbers(1, 3));
      await turn();
      await goOn(batches);
      expect(await next).toEqual(doubledNumbers(1, 3));
    });

    it('[4.5] [6.1] When a batch fails, a split call with rows in it fails and a call in an earlier batch does not', async () => {
      const { serving, batches } = await held({ batchSize: 4, batchTimeout: 100 });
      const replies = Promise.allSettled(
        [numbers(1, 2), numbers(3, 3)].map((rows) => serving.batchedRun(rows)),
      );
      await turn();
      await goOn(batches);
      await later(100);
      batches.next().fail(new RangeError('oops'));

      expect(await replies).toEqual([
        { status: 'fulfilled', value: doubledNumbers(1, 2) },
        { status: 'rejected', reason: expect.objectContaining({ code: 'SERVING_BATCH_FAILED' }) },
      ]);
      await later(100);
      expect(batches.batches).toEqual([]);
    });

    it('[4.6] [6.1] When the first batch of a split call fails, its other rows do not run', async () => {
      const { serving, batches } = await held({ batchSize: 2 });
      const failed = expect(serving.batchedRun(numbers(1, 6))).rejects.toThrow('oops');
      await turn();
      batches.next().fail(new RangeError('oops'));
      await failed;
      await turn();

      expect(batches.batches).toEqual([]);
    });

    it('[6.3] An output without the rows of the batch fails its callers, and the next batch runs', async () => {
      const { serving, batches } = await held();
      const failed = expect(serving.batchedRun(numbers(1, 3))).rejects.toMatchObject({
        code: 'SERVING_INVALID_OUTPUT',
        message: expect.stringContaining('shape [2]; axis 0 must have the 3 rows of the batch'),
      });
      await turn();
      batches.next().finish(floats([2], [1, 2]));
      await failed;

      const next = serving.batchedRun(numbers(1, 1));
      await turn();
      await goOn(batches);
      expect(await next).toEqual(doubledNumbers(1, 1));
    });

    it('[2.3] A batch without rows is refused alone', async () => {
      const serving = await serve({
        name: 'double',
        model: { useFactory: () => doubled },
        batchSize: 2,
      });

      const [empty, good] = await Promise.allSettled(
        [Batch.empty(), numbers(1, 1)].map((rows) => serving.batchedRun(rows)),
      );

      expect(empty).toMatchObject({ reason: expect.any(InvalidBatchError) });
      expect(good).toEqual({ status: 'fulfilled', value: doubledNumbers(1, 1) });
    });
  });

  describe('partitions', () => {
    it('[5.1] Batches run concurrently, one on each partition', async () => {
      const { Doubling, batches } = doublingClass();
      let release!: () => void;
      const released = new Promise<void>((resolve) => (release = resolve));
      class Waiting extends Doubling {
        override handleBatch(batch: Batch, partition: number): HandlerResult {
          const result = super.handleBatch(batch, partition);
          return released.then(() => result as BatchResult);
        }
      }
      const serving = await serve({
        name: 'class',
        model: { useClass: Waiting },
        partitions: 2,
        batchSize: 2,
      });
      const replies = [1, 3, 5].map((first) => serving.batchedRun(numbers(first, 2)));
      await turn();

      expect(batches.map(({ batch, partition }) => [partition, batch.consume()])).toEqual([
        [0, floats([2], [1, 2])],
        [1, floats([2], [3, 4])],
      ]);
      release();
      expect(await Promise.all(replies)).toEqual(
        [1, 3, 5].map((first) => doubledNumbers(first, 2)),
      );
    });

    it('[5.1] An idle serving uses its partitions in turn', async () => {
      const serving = await serve({
        name: 'double',
        model: { useFactory: () => doubled },
        partitions: 3,
      });
      const batches = recordBatches(serving);
      for (let call = 0; call < 4; call++) {
        await serving.batchedRun(1);
        await turn();
      }

      expect(batches.map(({ partition }) => partition)).toEqual([0, 1, 2, 0]);
    });
  });
});
