import { describe, expect, it } from '@jest/globals';
import { Batch, DONE } from 'nestjs-serving';
import { collect } from '../../fixtures/async/collect.js';
import { doubled, doubledNumbers, goOn, numbers } from '../../fixtures/batching/doubling.js';
import { floats } from '../../fixtures/values/tensors.js';
import { useServings } from '../../fixtures/serving/use-servings.js';
import { turn, useVirtualTime } from '../../fixtures/async/virtual-time.js';
import { withResolvers } from '../../fixtures/async/with-resolvers.js';
import { useHeldServings } from '../../fixtures/serving/use-held-servings.js';

describe('Faults of Nx.Serving, in virtual time', () => {
  useVirtualTime();
  const serve = useServings();
  const hold = useHeldServings();

  it('[8.1] One input stream keeps all partitions busy, with more pieces ready', async () => {
    const { held, serving } = await hold({ batchSize: 1, partitions: 2 });
    const reply = serving.batchedRun([1, 2, 3, 4, 5].map((value) => numbers(value)));
    await turn();
    expect(held.rows).toEqual([floats([1], [1]), floats([1], [2])]);
    await goOn(held);
    expect(held.rows).toEqual([floats([1], [2]), floats([1], [3])]);
    while (held.batches.length > 0) {
      await goOn(held);
    }

    expect(await reply).toEqual(doubledNumbers(1, 2, 3, 4, 5));
  });

  it('[8.4] A caller whose rows have ended does not wait for the longest row of the batch', async () => {
    const { promise: released, resolve: release } = withResolvers();
    const serving = await serve({
      name: 'steps',
      model: {
        useFactory: () =>
          async function* (rows: number[]) {
            yield rows.map((row) => row * 10);
            yield rows.map((row) => (row > 1 ? row * 100 : DONE));
            await released;
            yield rows.map((row) => (row > 1 ? row * 1000 : DONE));
          },
      },
    });
    const [short, long] = [serving.batchedRun(1), serving.batchedRun(2)];

    expect(await short).toEqual([10]);
    release();
    expect(await long).toEqual([20, 200, 2000]);
  });

  describe('streams', () => {
    it('[8.2] A stream can be read elsewhere and by several readers', async () => {
      const serving = await serve({ name: 'shared', model: { useFactory: () => doubled } });
      const stream = serving.stream(numbers(1, 2));
      const elsewhere = Promise.resolve().then(() => collect(stream));

      expect(await elsewhere).toEqual(await collect(stream));
    });

    it('[8.3] [8.5] Hooks and input streams combine', async () => {
      const serving = await serve({
        name: 'hooks',
        model: {
          useFactory:
            () =>
            (rows: string[], { emit }) => (emit('seen', rows), rows),
        },
      });

      const events = await collect(serving.stream(['a', 'b'].values(), { hooks: ['seen'] }));

      expect(events).toMatchObject([
        { hook: 'seen', value: ['a'] },
        { batch: { offset: 0 } },
        { hook: 'seen', value: ['b'] },
        { batch: { offset: 1 } },
      ]);
    });

    it('[6.1] [6.2] A step can fail one row of a stream while the others go on', async () => {
      const serving = await serve({
        name: 'steps',
        model: {
          useFactory: () =>
            async function* (rows: number[]) {
              yield rows.map((row) => (row < 0 ? new RangeError('negative') : row));
              yield rows.map((row) => row + 1);
            },
        },
      });

      const [good, bad] = await Promise.allSettled([
        collect(serving.stream(1)),
        collect(serving.stream(-1)),
      ]);

      expect(good).toMatchObject({ value: [{ output: 1 }, { output: 2 }] });
      expect(bad).toMatchObject({ reason: new RangeError('negative') });
    });
  });

  it('[8.5] Live input leads to live output: an event arrives before the source has more', async () => {
    const serving = await serve({ name: 'live', model: { useFactory: () => doubled } });
    const { promise: spoken, resolve: speak } = withResolvers();
    async function* microphone(): AsyncGenerator<Batch, void> {
      yield numbers(1);
      await spoken;
      yield numbers(2);
    }
    const events = serving.stream(microphone())[Symbol.asyncIterator]();

    expect(await events.next()).toMatchObject({ value: { output: doubledNumbers(1) } });
    speak();
    expect(await events.next()).toMatchObject({ value: { output: doubledNumbers(2) } });
    expect(await events.next()).toEqual({ done: true, value: undefined });
  });
});
