import { describe, expect, it } from '@jest/globals';
import {
  Batch,
  createServing,
  InvalidInputError,
  type ServingDefinition,
  Tensor,
} from 'nestjs-serving';
import { recordBatches } from 'nestjs-serving/testing';
import { doubled, doubledNumbers, numbers } from '../../fixtures/batching/doubling.js';
import { linearModel } from '../../fixtures/models/models.js';
import { floats } from '../../fixtures/values/tensors.js';
import { useServings } from '../../fixtures/serving/use-servings.js';
import {
  later,
  passTime,
  timers,
  turn,
  useVirtualTime,
} from '../../fixtures/async/virtual-time.js';
import { withResolvers } from '../../fixtures/async/with-resolvers.js';

const session = { intraOpNumThreads: 1 };

describe('Faults of Nx.Serving, in virtual time', () => {
  useVirtualTime();
  const serve = useServings();

  it('[4.9] Concurrent rows of different kinds and keys do not affect each other', async () => {
    const serving = await serve({
      name: 'kinds',
      model: { useFactory: () => doubled },
      batchKeys: ['a', 'b'],
      batchSize: 4,
      batchTimeout: 10,
    });
    const inputs = [
      numbers(1).withKey('a'),
      Batch.stack([floats([2], [1, 2])]).withKey('a'),
      Batch.stack([{ x: floats([2], [1, 2]) }]).withKey('a'),
      Batch.stack([1]).withKey('a'),
      numbers(2).withKey('b'),
      numbers(3).withKey('a'),
    ];

    const replies = await passTime(Promise.all(inputs.map((input) => serving.batchedRun(input))));

    expect(replies).toEqual(inputs.map((input) => doubled(input.consume())));
  });

  it('[4.9] A row that does not fit the model is refused alone before it enters a batch', async () => {
    const serving = await serve({
      name: 'model',
      model: { file: linearModel('rows'), session },
      batchSize: 3,
      batchTimeout: 10_000,
    });
    const call = (...values: number[]) =>
      serving.batchedRun({ x: floats([1, values.length], values) });
    const good = Promise.all([call(1, 2, 3), call(4, 5, 6)]);

    await expect(call(1, 2)).rejects.toThrow(InvalidInputError);
    await call(7, 8, 9);
    expect(await good).toHaveLength(2);
  });

  it('[4.1] No timer outlives its window, so none can close another', async () => {
    const serving = await serve({
      name: 'timers',
      model: { useFactory: () => doubled },
      batchSize: 2,
      batchTimeout: 100,
    });
    const batches = recordBatches(serving);
    for (let window = 0; window < 20; window++) {
      const first = serving.batchedRun(1);
      await later(70);
      await Promise.all([first, serving.batchedRun(2)]);
      expect(timers()).toBe(0);
    }
    const alone = serving.batchedRun(3);
    await later(99);
    expect(batches).toHaveLength(20);
    await later(1);
    await alone;
    await turn();

    expect(batches.map(({ rows }) => rows)).toEqual([...Array.from({ length: 20 }, () => 2), 1]);
    await later(1000);
    expect(batches).toHaveLength(21);
  });

  it('[4.3] By default a single call on an idle serving does not wait for others', async () => {
    const serving = await serve({ name: 'lone', model: { useFactory: () => doubled } });
    const now = performance.now();

    expect(await serving.batchedRun(1)).toBe(2);
    expect(performance.now()).toBe(now);
  });

  it('[4.7] Each key has a batch size and a timeout of its own', async () => {
    const serving = await serve({
      name: 'keys',
      model: { useFactory: () => doubled },
      batchKeys: ['short', { key: 'long', batchSize: 2, batchTimeout: 50 }],
      batchTimeout: 10,
    });
    const batches = recordBatches(serving);
    const calls = [numbers(1, 2, 3).withKey('short'), numbers(1, 2, 3).withKey('long')].map(
      (rows) => serving.batchedRun(rows),
    );
    await later(10);
    await later(40);
    await Promise.all(calls);

    expect(batches.map(({ key, rows, wait }) => [key, rows, wait])).toEqual([
      ['long', 2, 0],
      ['short', 3, 10],
      ['long', 1, 50],
    ]);
  });

  it('[2.2] A batch that is not full is not padded unless its model needs it', async () => {
    const serving = await serve({
      name: 'partial',
      model: { useFactory: () => doubled },
      batchSize: 8,
    });
    const batches = recordBatches(serving);

    await serving.batchedRun(numbers(1, 2, 3));
    await turn();

    expect(batches).toMatchObject([{ rows: 3, padding: 0 }]);
  });

  it('[4.6] A reply lies in memory of its own, of the size of its own rows', async () => {
    const serving = await serve<Tensor>({
      name: 'own',
      model: { useFactory: () => doubled },
      batchSize: 3,
    });

    const [one, two] = await Promise.all([
      serving.batchedRun(numbers(1)),
      serving.batchedRun(numbers(2, 3)),
    ]);

    const [first, second] = [one, two].map(({ data }) => (data as Float32Array).buffer);
    expect([first!.byteLength, second!.byteLength]).toEqual([4, 8]);
    (one.data as Float32Array).fill(99);
    expect(two).toEqual(doubledNumbers(2, 3));
  });

  it('[9.2] A serving is not ready until it has loaded and is warm, and servings load concurrently', async () => {
    const { promise: loaded, resolve: load } = withResolvers();
    const runs: unknown[] = [];
    const definition = (name: string): ServingDefinition => ({
      name,
      batchSize: 4,
      warmUp: [7],
      model: {
        useFactory: async () => {
          runs.push(`${name} loads`);
          await loaded;
          return (rows: number[]) => (runs.push(`${name} runs ${rows.length}`), doubled(rows));
        },
      },
    });
    const servings = ['a', 'b'].map((name) => createServing(definition(name)));
    const starting = Promise.all(servings.map((serving) => serving.start()));
    await turn();

    expect(runs).toEqual(['a loads', 'b loads']);
    expect(servings.map(({ state }) => state)).toEqual(['starting', 'starting']);
    await expect(servings[0]!.batchedRun(1)).rejects.toMatchObject({
      code: 'SERVING_CLOSED',
      statusCode: 503,
    });
    load();
    await starting;

    expect(runs.slice(2)).toEqual(['a runs 4', 'b runs 4']);
    expect(servings.map(({ state }) => state)).toEqual(['ready', 'ready']);
    await Promise.all(servings.map((serving) => serving.close()));
  });

  it('[1.9] Servings can be created while the application runs, with any name', async () => {
    const tenants = ['tenant/1', 'größter Kunde', ''.padEnd(100, 'x')];
    const servings = await Promise.all(
      tenants.map((name) =>
        serve({
          name,
          model: { useFactory: () => (rows: string[]) => rows.map((row) => name + row) },
        }),
      ),
    );

    expect(await Promise.all(servings.map((serving) => serving.batchedRun('!')))).toEqual(
      tenants.map((name) => `${name}!`),
    );
  });
});
