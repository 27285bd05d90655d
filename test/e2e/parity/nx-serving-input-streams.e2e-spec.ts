import { getEventListeners } from 'node:events';
import { describe, expect, it, jest } from '@jest/globals';
import {
  Batch,
  createServing,
  defineServing,
  InvalidBatchError,
  type ServingDefinition,
  type Tensor,
} from 'nestjs-serving';
import { recordBatches } from 'nestjs-serving/testing';
import { from } from 'rxjs';
import { collect } from '../../fixtures/async/collect.js';
import {
  doubled,
  doubledNumbers,
  doublingClass,
  goOn,
  numbers,
} from '../../fixtures/batching/doubling.js';
import { HeldFunction } from '../../fixtures/batching/held-function.js';
import { floats } from '../../fixtures/values/tensors.js';
import { useServings } from '../../fixtures/serving/use-servings.js';
import { passTime, turn, useVirtualTime } from '../../fixtures/async/virtual-time.js';
import { worker } from '../../fixtures/partitions/worker.js';

/** Yields the batches one by one, like a file reader or a microphone. */
async function* oneByOne(...batches: Batch[]): AsyncGenerator<Batch, void> {
  for (const batch of batches) {
    await turn();
    yield batch;
  }
}

/**
 * Endless batches of one row. `pulled` counts them, and `left` is set when the source is closed.
 */
function endless(): {
  readonly batches: AsyncIterable<Batch>;
  readonly seen: { pulled: number; left: boolean };
} {
  const seen = { pulled: 0, left: false };
  async function* batches(): AsyncGenerator<Batch, void> {
    try {
      for (;;) {
        yield numbers(++seen.pulled);
      }
    } finally {
      seen.left = true;
    }
  }
  return { batches: batches(), seen };
}

describe('Input streams, like Nx.Serving', () => {
  useVirtualTime();
  const serve = useServings();

  describe.each<[string, Partial<ServingDefinition>]>([
    ['a function', { model: { useFactory: () => doubled } }],
    ['a class', { model: { useClass: doublingClass().Doubling } }],
    ['a file', { model: { useFile: worker('doubling') } }],
  ])('%s', (_, how) => {
    const definition = (options: Partial<ServingDefinition>) =>
      ({ name: 'streams', ...how, ...options }) as ServingDefinition;

    it('[8.1] The batches of a sequence run, and their outputs are joined in order', async () => {
      const serving = await serve(definition({ batchSize: 2, batchTimeout: 10 }));
      const batches = recordBatches(serving);

      expect(await passTime(serving.batchedRun(oneByOne(numbers(1, 2), numbers(3))))).toEqual(
        doubledNumbers(1, 2, 3),
      );
      await turn();
      expect(batches.map(({ rows, padding }) => [rows, padding])).toEqual([
        [2, 0],
        [1, 0],
      ]);
    });

    it('[8.5] A streamed sequence has an event per batch, with offsets over the whole sequence', async () => {
      const serving = await serve(definition({ batchSize: 2 }));

      expect(await collect(serving.stream(oneByOne(numbers(1, 2), numbers(3))))).toMatchObject([
        { batch: { offset: 0, rows: 2 }, output: doubledNumbers(1, 2) },
        { batch: { offset: 2, rows: 1 }, output: doubledNumbers(3) },
      ]);
    });
  });

  it.each<[string, () => unknown]>([
    ['an async iterable', () => oneByOne(numbers(1, 2), numbers(3))],
    ['an Observable', () => from([numbers(1, 2), numbers(3)])],
    ['an iterator', () => [numbers(1, 2), numbers(3)].values()],
    ['a list', () => [numbers(1, 2), numbers(3)]],
  ])(
    '[8.1] The caller or preprocess may pass %s, which is postprocessed once',
    async (_, sequence) => {
      const postprocess = jest.fn((output: unknown, { info }: { info: unknown }) => [info, output]);
      const serving = await serve(
        defineServing({
          name: 'sequences',
          model: { useFactory: () => doubled },
          preprocess: (make: () => unknown) => ({ batch: make(), info: 'info' }),
          postprocess,
        }),
      );
      const plain = await serve({ name: 'plain', model: { useFactory: () => doubled } });

      expect(await plain.batchedRun(sequence())).toEqual(doubledNumbers(1, 2, 3));
      expect(await serving.batchedRun(sequence)).toEqual(['info', doubledNumbers(1, 2, 3)]);
      expect(postprocess).toHaveBeenCalledTimes(1);
    },
  );

  it('[8.1] An element that is no batch counts as it would as an input: a value is a row, a tensor has rows', async () => {
    const serving = await serve({ name: 'plain', model: { useFactory: () => doubled } });

    expect(await serving.batchedRun([1, 2, 3].values())).toEqual([2, 4, 6]);
    expect(await serving.batchedRun([floats([2], [1, 2]), floats([1], [3])].values())).toEqual(
      doubledNumbers(1, 2, 3),
    );
  });

  it('[4.5] [8.1] An element may be larger than the batch size', async () => {
    const serving = await serve({
      name: 'split',
      model: { useFactory: () => doubled },
      batchSize: 2,
    });

    expect(await serving.batchedRun([numbers(1, 2, 3, 4, 5), numbers(6)])).toEqual(
      doubledNumbers(1, 2, 3, 4, 5, 6),
    );
  });

  it('[3.2] [8.1] Elements of several sequences and plain calls share batches', async () => {
    const serving = await serve({
      name: 'shared',
      model: { useFactory: () => doubled },
      batchSize: 4,
      batchTimeout: 10_000,
    });
    const batches = recordBatches(serving);

    const replies = await Promise.all([
      serving.batchedRun([numbers(1)]),
      serving.batchedRun([numbers(2), numbers(3)]),
      serving.batchedRun(numbers(4)),
    ]);
    await turn();

    expect(replies).toEqual([doubledNumbers(1), doubledNumbers(2, 3), doubledNumbers(4)]);
    expect(batches.map(({ rows }) => rows)).toEqual([4]);
  });

  it('[8.1] Concurrent sequences are answered although their batches never fill', async () => {
    const serving = await serve({
      name: 'limited',
      model: { useFactory: () => doubled },
      batchSize: 4,
      batchTimeout: 100,
    });
    const waiting = [1, 2, 3, 4];
    const replies: unknown[] = [];
    const caller = async (): Promise<void> => {
      for (let n = waiting.shift(); n !== undefined; n = waiting.shift()) {
        replies.push(await serving.batchedRun(oneByOne(numbers(n))));
      }
    };
    await passTime(Promise.all([caller(), caller()]));

    expect(replies).toEqual([1, 2, 3, 4].map((n) => doubledNumbers(n)));
  });

  it('[8.1] A sequence is pulled at most two batches per partition ahead', async () => {
    const held = new HeldFunction<never>();
    const serving = await serve({
      name: 'held',
      model: { useFactory: held.useFactory },
      batchSize: 2,
      partitions: 2,
    });
    const { batches, seen } = endless();
    const reading = serving.stream(batches)[Symbol.asyncIterator]();
    const first = reading.next();
    await turn();

    // One batch on each partition and as many rows again.
    expect(held.rows).toEqual([floats([2], [1, 2]), floats([2], [3, 4])]);
    expect(seen.pulled).toBe(8);
    await goOn(held);
    expect(await first).toMatchObject({
      value: { batch: { offset: 0, rows: 1 }, output: doubledNumbers(1) },
    });
    await goOn(held);
    await reading.return!();
    await turn();
    held.batches.splice(0).forEach(({ rows, finish }) => finish(doubled(rows)));
  });

  it.each(['batchedRun', 'stream'] as const)(
    '[7.3] [8.1] A signal that ends a %s closes its source and removes its queued rows',
    async (method) => {
      const held = new HeldFunction<never>();
      const serving = await serve({
        name: 'held',
        model: { useFactory: held.useFactory },
        batchSize: 1,
      });
      const { batches, seen } = endless();
      const controller = new AbortController();
      const { signal } = controller;
      const call =
        method === 'stream'
          ? collect(serving.stream(batches, { signal }))
          : serving.batchedRun(batches, { signal });
      const reason = new Error('gone');
      const failed = expect(call).rejects.toBe(reason);
      await turn();
      controller.abort(reason);
      await failed;
      await turn();
      const next = serving.batchedRun(numbers(9));
      await turn();

      expect(seen.left).toBe(true);
      expect(getEventListeners(signal, 'abort')).toEqual([]);
      expect(held.rows).toEqual([floats([1], [1])]);
      await goOn(held);
      await goOn(held);
      expect(await next).toEqual(doubledNumbers(9));
    },
  );

  it('[8.1] A consumer that leaves the stream closes its source', async () => {
    const serving = await serve({ name: 'left', model: { useFactory: () => doubled } });
    const { batches, seen } = endless();
    for await (const event of serving.stream(batches)) {
      expect(event).toBeDefined();
      break;
    }
    await turn();

    expect(seen.left).toBe(true);
    const { pulled } = seen;
    await turn();
    expect(seen.pulled).toBe(pulled);
  });

  describe('failures', () => {
    it.each<[string, unknown, object]>([
      ['throws', new RangeError('end of tape'), { message: 'end of tape' }],
      ['gives a batch without rows', Batch.empty(), { code: 'SERVING_INVALID_BATCH' }],
      [
        'gives a batch of an unknown key',
        numbers(1).withKey('other'),
        { code: 'SERVING_UNKNOWN_KEY' },
      ],
      ['gives a tensor without rows', floats([], [1]), { code: 'SERVING_INVALID_BATCH' }],
    ])('[8.1] A source that %s fails its call alone', async (_, bad, error) => {
      const serving = await serve({
        name: 'fails',
        model: { useFactory: () => doubled },
        batchSize: 4,
      });
      async function* source(): AsyncGenerator<unknown, void> {
        yield numbers(1);
        await turn();
        if (bad instanceof Error) {
          throw bad;
        }
        yield bad;
      }

      const [failed, good] = await Promise.allSettled([
        serving.batchedRun(source()),
        serving.batchedRun(numbers(2)),
      ]);
      expect(failed).toMatchObject({ status: 'rejected', reason: error });
      expect(good).toEqual({ status: 'fulfilled', value: doubledNumbers(2) });

      const seen: unknown[] = [];
      const reading = (async () => {
        for await (const { output } of serving.stream(source())) {
          seen.push(output);
        }
      })();
      await expect(reading).rejects.toMatchObject(error);
      expect(seen).toEqual([doubledNumbers(1)]);
    });

    it('[6.1] [8.1] A batch that fails ends the call, which pulls no more', async () => {
      const serving = await serve({
        name: 'fails',
        batchSize: 1,
        model: {
          useFactory: () => (rows: Tensor) =>
            (rows.data as Float32Array)[0] === 2
              ? Promise.reject(new RangeError('oops'))
              : doubled(rows),
        },
      });
      const { batches, seen } = endless();

      await expect(serving.batchedRun(batches)).rejects.toMatchObject({
        cause: new RangeError('oops'),
      });
      await turn();

      expect(seen.left).toBe(true);
    });

    it('[2.3] [8.1] A sequence without batches is refused by calls and streams nothing', async () => {
      const serving = await serve({ name: 'empty', model: { useFactory: () => doubled } });

      await expect(serving.batchedRun(oneByOne())).rejects.toThrow(InvalidBatchError);
      expect(await collect(serving.stream(oneByOne()))).toEqual([]);
      expect(
        await collect(
          createServing({ name: 'inline', model: { useFactory: () => doubled } }).stream(
            oneByOne(),
            {
              inline: true,
            },
          ),
        ),
      ).toEqual([]);
    });
  });
});
