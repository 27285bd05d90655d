import { describe, expect, it } from '@jest/globals';
import {
  Batch,
  OverloadedError,
  RequestTooLargeError,
  type ServingOptions,
  Tensor,
} from 'nestjs-serving';
import { BatchScript, settle } from 'nestjs-serving/testing';
import { iterated, outputsOf } from '../../fixtures/async/streams.js';
import { floats } from '../../fixtures/values/tensors.js';
import { useServings } from '../../fixtures/serving/use-servings.js';

describe('The cost of a call', () => {
  const startServing = useServings();

  /** A serving whose queue has no room for any cost names it in its refusal. */
  async function costOf(batch: Batch, queue: ServingOptions['queue'] = {}): Promise<number> {
    const serving = await startServing({
      name: 'dear',
      queue: { maxCost: 0.5, ...queue },
      model: { useFactory: () => (rows: unknown) => rows },
    });
    const refusal = await serving.batchedRun(batch).then(
      () => undefined,
      (error: Error) => error.message,
    );
    return refusal === undefined ? 0 : Number(/of 0.5 and never (\d+);/.exec(refusal)?.[1]);
  }

  it.each([
    { of: 'floats', batch: Batch.concatenate([floats([3, 2], [1, 2, 3, 4, 5, 6])]), cost: 24 },
    {
      of: 'half of the floats',
      batch: Batch.concatenate([
        floats(
          [4, 2],
          Array.from({ length: 8 }, () => 1),
        ),
      ]).slice(1, 3),
      cost: 16,
    },
    {
      of: 'rows of several tensors',
      batch: Batch.concatenate([
        { a: floats([2, 1], [1, 2]), b: floats([2, 3], [1, 2, 3, 4, 5, 6]) },
      ]),
      cost: 32,
    },
    {
      of: 'rows that were stacked',
      batch: Batch.stack([floats([2], [1, 2]), floats([2], [3, 4])]),
      cost: 16,
    },
    {
      of: 'bytes',
      batch: Batch.concatenate([new Tensor('uint8', Uint8Array.of(1, 2, 3), [3, 1])]),
      cost: 3,
    },
    {
      of: 'long numbers',
      batch: Batch.concatenate([new Tensor('int64', BigInt64Array.of(1n, 2n), [2])]),
      cost: 16,
    },
    {
      of: 'strings, each as one',
      batch: Batch.concatenate([new Tensor('string', ['long', 'longer', 'x', 'y'], [2, 2])]),
      cost: 4,
    },
    {
      of: 'rows after an item without rows',
      batch: Batch.concatenate([floats([0, 2], []), floats([2, 2], [1, 2, 3, 4])]),
      cost: 16,
    },
    { of: '0 for plain values', batch: Batch.stack(['a', 'b']), cost: 0 },
  ])('[7.1] [H11] The cost of a batch is its size in bytes: $of', async ({ batch, cost }) => {
    expect(await costOf(batch)).toBe(cost);
  });

  it('[7.1] A cost function of the serving replaces the size in bytes', async () => {
    expect(
      await costOf(Batch.stack(['a', 'b']), {
        cost: ({ size, key }) => (key === 'default' ? size * 7 : 0),
      }),
    ).toBe(14);
  });

  it('[7.1] The cost function is not called when no cost is limited', async () => {
    let asked = 0;

    const queue = { maxCost: undefined, cost: () => ++asked };
    expect(await costOf(Batch.stack(['a']), queue)).toBe(0);
    expect(asked).toBe(0);
  });

  it.each([-1, NaN, '5', undefined, null, 3n])(
    '[7.1] [1.9] A cost function that returns %p is refused',
    async (cost) => {
      const serving = await startServing({
        name: 'dear',
        queue: { maxCost: 100, cost: () => cost as number },
        model: { useFactory: () => (rows: unknown) => rows },
      });

      await expect(serving.batchedRun(Batch.stack(['a']))).rejects.toThrow(
        'Serving "dear": queue.cost must return a number of 0 or more, it returned ',
      );
    },
  );
});

describe('A serving with a cost limit', () => {
  const startServing = useServings();

  /** A serving whose one partition runs a batch. */
  async function busy(options: Partial<ServingOptions>) {
    const script = new BatchScript();
    const serving = await startServing<unknown>(
      script.createServing<unknown, unknown>({ name: 'dear', ...options }),
    );
    const first = serving.batchedRun('first');
    await script.next();
    return { serving, script, first };
  }

  it('[7.1] Tensors with too many bytes are refused, and running rows do not count', async () => {
    const { serving, script } = await busy({ queue: { maxCost: 20 } });
    const call = (rows: number) =>
      serving.batchedRun(
        floats(
          [rows, 1],
          Array.from({ length: rows }, () => 1),
        ),
      );
    const waiting = call(4);

    await expect(call(2)).rejects.toThrow(
      new OverloadedError(
        'Serving "dear" has rows in its queue that cost 16 of at most 20 and no room for 8 more; call again later, or raise queue.maxCost',
      ),
    );
    await expect(call(6)).rejects.toThrow(RequestTooLargeError);
    const fits = call(1);

    script.release((rows) => rows);
    await Promise.all([waiting, fits]);
    await call(5);
  });

  it('[7.1] The cost function of a serving limits its queue, and rows of cancelled calls do not count', async () => {
    const { serving, script, first } = await busy({
      queue: { maxCost: 10, cost: (batch) => (batch.consume() as string[]).join('').length },
    });
    const leaving = new AbortController();
    const left = serving.batchedRun('12345678', leaving);
    const refused = serving.batchedRun('123');
    await expect(refused).rejects.toMatchObject({ code: 'SERVING_OVERLOADED' });

    leaving.abort(new Error('gone'));
    await expect(left).rejects.toThrow('gone');
    const reply = serving.batchedRun('123');

    script.release((rows) => rows);
    expect(await reply).toBe('123');
    await first;
  });

  it('[7.1] [4.5] A split call counts towards the cost limit until its last row has left', async () => {
    const { serving, script } = await busy({
      queue: { maxCost: 8, cost: ({ size }) => size * 2 },
      batchSize: 2,
    });
    const split = serving.batchedRun(Batch.stack(['a', 'b', 'c', 'd']));
    await expect(serving.batchedRun('e')).rejects.toThrow('cost 8 of at most 8');

    script.batches[0]!.finish(['FIRST']);
    await settle();
    await expect(serving.batchedRun('e')).rejects.toThrow('cost 8 of at most 8');

    script.batches[0]!.finish(['A', 'B']);
    await settle();
    const reply = serving.batchedRun(Batch.stack(['e', 'f']));
    script.release((rows) => rows);
    expect(await Promise.all([split, reply])).toEqual([
      ['A', 'B', 'c', 'd'],
      ['e', 'f'],
    ]);
  });

  it.each(['a reply', 'a stream'])(
    '[7.1] [8.1] A sequence for %s is pulled no further ahead than the cost limit allows',
    async (answer) => {
      const costs: number[] = [];
      const { serving, script, first } = await busy({
        queue: {
          maxCost: 10,
          cost: (batch) => {
            costs.push(batch.size);
            return 4;
          },
        },
        batchSize: 8,
      });
      const rows = ['a', 'b', 'c', 'd', 'e'];
      costs.length = 0;
      const sequence = rows.values();
      const reply =
        answer === 'a reply'
          ? serving.batchedRun(sequence)
          : iterated(serving.stream(sequence)).then(outputsOf);
      await settle();

      expect([serving.queued, costs]).toEqual([2, [1, 1, 1]]);
      script.release((batch) => batch);

      expect((await reply) as unknown[]).toEqual(
        answer === 'a reply' ? rows : rows.map((row) => [row]),
      );
      expect(costs).toHaveLength(rows.length);
      await first;
    },
  );

  it('[7.1] A cost function that throws or returns no number fails only the calls for which it does', async () => {
    const { serving, script } = await busy({
      queue: {
        maxCost: 10,
        cost: (batch) => {
          const [row] = batch.consume() as string[];
          if (row === 'throws') {
            throw new RangeError('no such row');
          }
          return row === 'nothing' ? (undefined as unknown as number) : 1;
        },
      },
    });
    const fine = serving.batchedRun('fine');

    await expect(serving.batchedRun('throws')).rejects.toThrow(RangeError);
    await expect(serving.batchedRun('nothing')).rejects.toMatchObject({ code: 'SERVING_INVALID' });
    await expect(serving.stream('throws')[Symbol.asyncIterator]().next()).rejects.toThrow(
      RangeError,
    );

    script.release((rows) => rows);
    expect(await fine).toBe('fine');
    expect(serving.queued).toBe(0);
  });

  it.each([0, -5, NaN, '10'])('[7.1] [1.9] A cost limit of %p is refused', async (maxCost) => {
    await expect(busy({ queue: { maxCost: maxCost as number } })).rejects.toThrow(
      'option "queue.maxCost" is',
    );
  });
});
