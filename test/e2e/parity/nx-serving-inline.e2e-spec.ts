import { setImmediate as endOfTurn } from 'node:timers/promises';
import { describe, expect, it } from '@jest/globals';
import {
  Batch,
  createServing,
  type LocalServing,
  type ServingDefinition,
  withMetadata,
  Tensor,
} from 'nestjs-serving';
import type { HandlerResult } from '../../../lib/core/partitions/engine.js';
import { doubled, doublingClass } from '../../fixtures/batching/doubling.js';
import { HeldFunction } from '../../fixtures/batching/held-function.js';
import { floats } from '../../fixtures/values/tensors.js';
import { useServings } from '../../fixtures/serving/use-servings.js';
import { worker } from '../../fixtures/partitions/worker.js';

/** A batch function that doubles, and the sizes of its batches. */
function noted(): {
  readonly model: { readonly useFactory: () => (rows: Tensor) => unknown };
  readonly sizes: (number | undefined)[];
} {
  const sizes: (number | undefined)[] = [];
  return {
    sizes,
    model: { useFactory: () => (rows) => (sizes.push(rows.dims[0]), doubled(rows)) },
  };
}

const three = Batch.concatenate([floats([3], [1, 2, 3])]);

describe('Inline runs, like Nx.Serving', () => {
  const serve = useServings();

  describe.each<[string, Partial<ServingDefinition>]>([
    ['a function', { model: { useFactory: () => doubled } }],
    ['a class', { model: { useClass: doublingClass().Doubling } }],
    ['a file', { model: { useFile: worker('doubling') } }],
  ])('%s', (_, how) => {
    const runOf = async (
      options: Partial<ServingDefinition> = {},
    ): Promise<LocalServing['run']> => {
      const serving = await serve({ name: 'inline', ...how, ...options } as ServingDefinition);
      return (input) => serving.run(input);
    };

    it('[3.1] One stacked tensor runs as a batch of one row', async () => {
      const run = await runOf();

      expect(await run(Batch.stack([floats([3], [1, 2, 3])]))).toEqual(floats([1, 3], [2, 4, 6]));
    });

    it('[1.7] [3.1] Containers run leaf by leaf', async () => {
      const run = await runOf();

      expect(
        await run(Batch.concatenate([[floats([3], [1, 2, 3]), { b: floats([3, 1], [4, 5, 6]) }]])),
      ).toEqual([floats([3], [2, 4, 6]), { b: floats([3, 1], [8, 10, 12]) }]);
    });

    it('[2.4] [3.1] No leaf of the reply has results of padding', async () => {
      const run = await runOf({ batchSize: [4] });

      expect(await run({ x: floats([3], [1, 2, 3]), y: floats([3, 1], [4, 5, 6]) })).toEqual({
        x: floats([3], [2, 4, 6]),
        y: floats([3, 1], [8, 10, 12]),
      });
    });

    it('[3.1] The outputs of a sequence of batches are joined in its order', async () => {
      const run = await runOf();

      expect(
        await run(
          [[1, 2], [3]].map((values) => Batch.concatenate([floats([values.length], values)])),
        ),
      ).toEqual(floats([3], [2, 4, 6]));
    });
  });

  it('[3.1] [4.7] Any key runs, and the function is built for the key of the batch', async () => {
    const keys: string[] = [];
    const serving = createServing({
      name: 'keys',
      model: { useFactory: ({ key }) => (keys.push(key), doubled) },
    });

    expect(await serving.run(three.withKey('foo'))).toEqual(floats([3], [2, 4, 6]));
    expect(await serving.run(three.withKey('bar'))).toEqual(floats([3], [2, 4, 6]));
    await serving.run(three.withKey('foo'));

    expect(keys).toEqual(['foo', 'bar']);
  });

  it('[3.1] [4.7] A sequence may mix keys, and each runs by its own function', async () => {
    const serving = createServing({
      name: 'keys',
      model: {
        useFactory:
          ({ key }) =>
          (rows: string[]) =>
            rows.map((row) => key + row),
      },
    });

    expect(
      await serving.run(['a', 'b', 'a'].map((key, i) => Batch.stack([String(i)]).withKey(key))),
    ).toEqual(['a0', 'b1', 'a2']);
  });

  it('[1.2] A class that is not started is initialised inline with the key of the first batch, on one partition', async () => {
    const { Doubling, inits, batches } = doublingClass();
    const serving = createServing({
      name: 'class',
      model: { useClass: Doubling },
      partitions: [{ gpu: 0 }, { gpu: 1 }],
    });

    expect(inits).toEqual([]);
    await serving.run(three.withKey('first'));
    await serving.run(three.withKey('second'));

    expect(inits).toEqual([['inline', [{ gpu: 0, batchKeys: ['first'] }]]]);
    expect(
      batches.map(({ batch, partition }) => [batch.key, batch.size, batch.padding, partition]),
    ).toEqual([
      ['first', 3, 0, 0],
      ['second', 3, 0, 0],
    ]);
  });

  it('[1.2] A class that has been started is neither initialised nor constructed again', async () => {
    let made = 0;
    const { Doubling, inits } = doublingClass();
    class Counted extends Doubling {
      readonly number = ++made;
      override handleBatch(): HandlerResult {
        return { output: [this.number], metadata: '' };
      }
    }
    const serving = await serve({ name: 'class', model: { useClass: Counted } });

    expect([await serving.batchedRun(1), await serving.run(1)]).toEqual([1, 1]);
    expect(inits.map(([kind]) => kind)).toEqual(['batched']);
  });

  it('[3.1] Without a batch size a call of any size runs whole', async () => {
    const { model, sizes } = noted();

    await createServing({ name: 'whole', model }).run(
      floats([100], Array.from({ length: 100 }, Number)),
    );

    expect(sizes).toEqual([100]);
  });

  it('[3.1] A batch size cuts a larger call into consecutive pieces that are joined in order', async () => {
    const held = new HeldFunction<never>();
    const serving = createServing({
      name: 'pieces',
      model: { useFactory: held.useFactory },
      batchSize: 2,
    });
    const reply = serving.run(three);
    const seen: unknown[] = [];
    for (let piece = 0; piece < 2; piece++) {
      await endOfTurn();
      await endOfTurn();
      expect(held.batches).toHaveLength(1);
      const { rows, finish } = held.next();
      seen.push(rows);
      finish(doubled(rows));
    }

    expect(await reply).toEqual(floats([3], [2, 4, 6]));
    expect(seen).toEqual([floats([2], [1, 2]), floats([1], [3])]);
  });

  it('[2.2] [3.1] Batches are padded only on request', async () => {
    const { model, sizes } = noted();
    const serving = createServing({ name: 'unpadded', model, batchSize: 4 });

    await serving.run(three);
    expect(await serving.run(three.pad(1))).toEqual(floats([3], [2, 4, 6]));

    expect(sizes).toEqual([3, 4]);
  });

  it('[4.5] [8.1] An element of a sequence that is larger than the batch size is cut like a call', async () => {
    const { model, sizes } = noted();
    const serving = createServing({ name: 'cut', model, batchSize: 1 });

    expect(
      await serving.run([
        Batch.concatenate([floats([2], [1, 2])]),
        Batch.concatenate([floats([1], [3])]),
      ]),
    ).toEqual(floats([3], [2, 4, 6]));
    expect(sizes).toEqual([1, 1, 1]);
  });

  it('[8.1] A sequence without batches is refused', async () => {
    const serving = createServing({ name: 'nothing', model: { useFactory: () => doubled } });

    await expect(serving.run((function* (): Generator<Batch> {})())).rejects.toMatchObject({
      code: 'SERVING_INVALID_BATCH',
    });
  });

  it('[1.6] A call in pieces has the metadata of every piece', async () => {
    let batch = 0;
    const serving = createServing({
      name: 'pieces',
      batchSize: 2,
      model: { useFactory: () => (rows: unknown) => withMetadata(doubled(rows), batch++) },
      postprocess: (_, { metadata }) => metadata,
    });

    expect([await serving.run(three), await serving.run(three)]).toEqual(
      [0, 2].map((first) => [
        { offset: 0, rows: 2, metadata: first },
        { offset: 2, rows: 1, metadata: first + 1 },
      ]),
    );
  });

  it('[1.5] preprocess and postprocess receive the same as in batched runs', async () => {
    const { Doubling, batches } = doublingClass();
    const serving = createServing({
      name: 'pre and post',
      model: { useClass: Doubling },
      preprocess: (rows) => ({ batch: Batch.stack(rows as Tensor[]), info: ['info', rows] }),
      postprocess: (output, { metadata, info }) => ({ output, metadata, info }),
    });
    const input = [floats([2], [1, 2]), floats([2], [3, 4])];

    expect(await serving.run(input)).toEqual({
      output: floats([2, 2], [2, 4, 6, 8]),
      metadata: 'doubled',
      info: ['info', input],
    });
    expect(batches.map(({ batch }) => batch.consume())).toEqual([floats([2, 2], [1, 2, 3, 4])]);
  });

  it('[3.1] Concurrent inline calls share no batch', async () => {
    const { model, sizes } = noted();
    const serving = await serve({ name: 'alone', model, batchTimeout: 10_000 });

    await Promise.all([serving.run(three), serving.run(three)]);

    expect(sizes).toEqual([3, 3]);
  });

  it('[3.1] [6.1] A call whose batch fails, fails alone', async () => {
    const serving = createServing({
      name: 'fails',
      model: {
        useFactory:
          () =>
          ([row]: number[]) =>
            row === 1 ? Promise.reject(new RangeError('oops')) : [row],
      },
    });

    const [failed, answered] = await Promise.allSettled([serving.run(1), serving.run(2)]);

    expect(failed).toMatchObject({
      reason: { code: 'SERVING_BATCH_FAILED', cause: new RangeError('oops') },
    });
    expect(answered).toEqual({ status: 'fulfilled', value: 2 });
  });
});
