import { describe, expect, it } from '@jest/globals';
import { Batch, createServing, InvalidServingError } from 'nestjs-serving';
import { HeldFunction } from '../../fixtures/batching/held-function.js';
import { useServings } from '../../fixtures/serving/use-servings.js';
import { later, turn, useVirtualTime } from '../../fixtures/async/virtual-time.js';

const keyed = (key: string, rows: string): Batch => Batch.stack(rows.split('')).withKey(key);
const upper = () => (rows: string[]) => rows.map((row) => row.toUpperCase());

describe('Options of keys', () => {
  useVirtualTime();
  const start = useServings();

  it('[4.7] A key can have a batch size of its own', async () => {
    const batches: string[] = [];
    const serving = await start({
      name: 'held',
      batchSize: 4,
      batchKeys: [{ key: 'long', batchSize: 2 }, 'short'],
      model: {
        useFactory: ({ key }) => {
          return (rows: string[]) => (batches.push(`${key}: ${rows.join('')}`), rows);
        },
      },
    });

    await Promise.all([
      serving.batchedRun(keyed('long', 'abc')),
      serving.batchedRun(keyed('short', 'defgh')),
    ]);

    expect(batches).toEqual(['long: ab', 'long: c', 'short: defg', 'short: h']);
  });

  it('[4.7] A key can have a batch timeout of its own', async () => {
    const held = new HeldFunction();
    const serving = await start({
      name: 'held',
      batchTimeout: 10,
      partitions: 3,
      batchKeys: [
        { key: 'patient', batchTimeout: 100 },
        { key: 'hasty', batchTimeout: 0 },
        'other',
      ],
      model: { useFactory: held.useFactory },
    });

    const replies = ['patient', 'other', 'hasty'].map((key) =>
      serving.batchedRun(keyed(key, key[0]!)),
    );
    await turn();
    expect(held.rows).toEqual([['h']]);
    await later(10);
    expect(held.rows).toEqual([['h'], ['o']]);
    await later(90);
    expect(held.rows).toEqual([['h'], ['o'], ['p']]);

    held.batches.forEach(({ rows, finish }) => finish(rows));
    await Promise.all(replies);
  });

  it('[4.7] [3.1] Inline runs are cut into pieces of the batch size of their key', async () => {
    const batches: string[][] = [];
    const serving = createServing({
      name: 'upper',
      batchKeys: [{ key: 'long', batchSize: 2 }, 'short'],
      model: { useFactory: () => (rows: string[]) => (batches.push(rows), rows) },
    });

    await serving.run(keyed('long', 'abc'));
    await serving.run(keyed('short', 'def'));

    expect(batches).toEqual([['a', 'b'], ['c'], ['d', 'e', 'f']]);
  });

  it('[4.7] [3.1] Inline runs accept any key', async () => {
    const serving = await start<string[]>({
      name: 'upper',
      batchKeys: ['en', 'de'],
      model: { useFactory: upper },
    });

    expect(await serving.run(keyed('fr', 'ab'))).toEqual(['A', 'B']);
    expect(await serving.run(Batch.stack(['a']))).toEqual(['A']);
  });

  it.each([
    [[{ key: 'long' }, 'long']],
    [[{ batchSize: 2 } as never]],
    [[{ key: '', batchSize: 2 }]],
    [{ long: { batchSize: 2 } } as never],
  ])('[4.7] [1.9] The keys %j are refused', (batchKeys: readonly (string | { key: string })[]) => {
    const definition = { name: 'upper', model: { useFactory: upper }, batchKeys };

    expect(() => createServing(definition)).toThrow(
      /^Serving "upper" with "useFactory": option "batchKeys" is .*; allowed is a list of different keys: strings, or objects of key and options$/,
    );
  });

  it.each([
    [{ batchSize: 0 }, 'option "batchSize" is 0; allowed is a whole number from 1 to 1048576'],
    [
      { batchTimeout: -1 },
      'option "batchTimeout" is -1; allowed is milliseconds from 0 to 2147483647',
    ],
    [{ timeout: 3 }, 'unknown option "timeout" (3); known are batchSize, batchTimeout, key'],
    [
      { batchsize: 3 },
      'unknown option "batchsize" (3); did you mean "batchSize"? known are batchSize, batchTimeout, key',
    ],
  ])(
    '[4.7] [1.9] Invalid options of a key are refused with the names of serving and key: %p',
    (own, message) => {
      const definition = {
        name: 'upper',
        model: { useFactory: upper },
        batchKeys: [{ key: 'long', ...(own as object) }],
      };

      expect(() => createServing(definition)).toThrow(InvalidServingError);
      expect(() => createServing(definition)).toThrow(
        `Serving "upper" with "useFactory", key "long": ${message}`,
      );
    },
  );

  it('[4.7] [7.1] A batch size of a key that exceeds the queue limit is refused', () => {
    const definition = {
      name: 'upper',
      model: { useFactory: upper },
      batchKeys: [{ key: 'long', batchSize: 50 }],
    };

    expect(() => createServing({ ...definition, queue: { maxRows: 50 } })).not.toThrow();
    expect(() => createServing({ ...definition, queue: { maxRows: 40 } })).toThrow(
      'Serving "upper" with "useFactory", key "long": batchSize 50 is more than queue.maxRows 40, so no batch could ever fill',
    );
  });
});

describe('setBatchSize and setBatchTimeout', () => {
  useVirtualTime();
  const start = useServings();

  it.each([
    { whose: 'all keys', key: undefined, batches: [['a', 'b'], ['c'], ['d', 'e'], ['f']] },
    { whose: 'one key', key: 'long', batches: [['a', 'b'], ['c'], ['d', 'e', 'f']] },
  ])(
    '[4.8] setBatchSize changes the batches and inline pieces of $whose',
    async ({ key, batches }) => {
      const seen: string[][] = [];
      const useFactory = () => (rows: string[]) => (seen.push(rows), rows);
      const serving = await start({
        name: 'upper',
        batchKeys: ['long', 'short'],
        batchSize: 9,
        model: { useFactory },
      });

      serving.setBatchSize(2, key);

      await serving.batchedRun(keyed('long', 'abc'));
      await serving.batchedRun(keyed('short', 'def'));
      expect(seen.splice(0)).toEqual(batches);
      await serving.run(keyed('long', 'abc'));
      await serving.run(keyed('short', 'def'));
      expect(seen).toEqual(batches);
    },
  );

  it('[4.8] An open window keeps the batch size with which it opened', async () => {
    const held = new HeldFunction();
    const serving = await start({
      name: 'held',
      batchSize: 3,
      batchTimeout: 10,
      partitions: 2,
      model: { useFactory: held.useFactory },
    });
    const replies = [serving.batchedRun(keyed('default', 'a'))];
    await turn();

    serving.setBatchSize(2);
    replies.push(serving.batchedRun(keyed('default', 'bcde')));
    await turn();

    expect(held.rows).toEqual([
      ['a', 'b', 'c'],
      ['d', 'e'],
    ]);
    held.batches.forEach(({ rows, finish }) => finish(rows));
    expect(await Promise.all(replies)).toEqual([['a'], ['b', 'c', 'd', 'e']]);
  });

  it('[4.8] An open window keeps the timeout with which it opened', async () => {
    const held = new HeldFunction();
    const serving = await start({
      name: 'held',
      batchTimeout: 10,
      partitions: 2,
      model: { useFactory: held.useFactory },
    });
    const replies = [serving.batchedRun('a')];
    await turn();

    serving.setBatchTimeout(100);
    await later(10);
    expect(held.rows).toEqual([['a']]);
    replies.push(serving.batchedRun('b'));
    await later(99);
    expect(held.rows).toEqual([['a']]);
    await later(1);

    expect(held.rows).toEqual([['a'], ['b']]);
    held.batches.forEach(({ rows, finish }) => finish(rows));
    await Promise.all(replies);
  });

  it('[4.8] setBatchTimeout can change the timeout of one key', async () => {
    const held = new HeldFunction();
    const serving = await start({
      name: 'held',
      batchTimeout: 10,
      partitions: 2,
      batchKeys: ['other', 'hasty'],
      model: { useFactory: held.useFactory },
    });

    serving.setBatchTimeout(0, 'hasty');
    const replies = ['other', 'hasty'].map((key) => serving.batchedRun(keyed(key, key[0]!)));
    await turn();
    expect(held.rows).toEqual([['h']]);
    await later(10);

    expect(held.rows).toEqual([['h'], ['o']]);
    held.batches.forEach(({ rows, finish }) => finish(rows));
    await Promise.all(replies);
  });

  it('[4.8] setBatchSize works before the start', async () => {
    const seen: string[][] = [];
    const serving = createServing({
      name: 'upper',
      model: { useFactory: () => (rows: string[]) => (seen.push(rows), rows) },
    });

    serving.setBatchSize(2);
    await serving.start();
    await serving.batchedRun(keyed('default', 'abc'));

    expect(seen).toEqual([['a', 'b'], ['c']]);
    await serving.close();
  });

  it('[4.8] setBatchSize changes one serving, and no other of the same definition', async () => {
    const definition = {
      name: 'upper',
      model: { useFactory: upper },
      batchKeys: [{ key: 'long', batchSize: 4 }],
    };
    const [changed, other] = [await start(definition), await start(definition)];

    changed.setBatchSize(1, 'long');

    const sizes: number[] = [];
    other.eventsOf('batch:end').subscribe(({ rows }) => sizes.push(rows));
    await other.batchedRun(keyed('long', 'abcd'));
    expect(sizes).toEqual([4]);
    expect(definition.batchKeys).toEqual([{ key: 'long', batchSize: 4 }]);
  });

  it.each([
    ['setBatchSize', 0, 'option "batchSize" is 0; allowed is a whole number from 1 to 1048576'],
    ['setBatchSize', 1.5, 'option "batchSize" is 1.5; allowed is a whole number from 1 to 1048576'],
    ['setBatchSize', '8', 'option "batchSize" is "8"; allowed is a whole number from 1 to 1048576'],
    ['setBatchSize', undefined, 'option "batchSize" is undefined; give its new value'],
    ['setBatchTimeout', undefined, 'option "batchTimeout" is undefined; give its new value'],
    [
      'setBatchTimeout',
      -1,
      'option "batchTimeout" is -1; allowed is milliseconds from 0 to 2147483647',
    ],
    [
      'setBatchTimeout',
      NaN,
      'option "batchTimeout" is NaN; allowed is milliseconds from 0 to 2147483647',
    ],
  ] as const)(
    '[4.8] [1.9] Invalid values are refused: %s to %p',
    async (method, value, message) => {
      const seen: string[][] = [];
      const serving = await start({
        name: 'upper',
        batchSize: 2,
        model: { useFactory: () => (rows: string[]) => (seen.push(rows), rows) },
      });

      expect(() => serving[method](value as number)).toThrow(
        new InvalidServingError(`Serving "upper": ${message}`),
      );

      await serving.batchedRun(keyed('default', 'abc'));
      expect(seen).toEqual([['a', 'b'], ['c']]);
    },
  );

  it.each(['setBatchSize', 'setBatchTimeout'] as const)(
    '[4.8] [4.7] %s refuses an unknown key with the sorted list of known keys',
    (method) => {
      const serving = createServing({
        name: 'upper',
        model: { useFactory: upper },
        batchKeys: ['en', 'de'],
      });

      expect(() => serving[method](8, 'fr')).toThrow(
        new InvalidServingError('Serving "upper" has no key "fr"; its keys are de, en'),
      );
      expect(() => serving[method](8, Symbol('fr') as never)).toThrow(
        new InvalidServingError('Serving "upper" has no key Symbol(fr); its keys are de, en'),
      );
    },
  );

  it('[4.8] [2.4] setBatchSize refuses a size above the largest allowed size', () => {
    const serving = createServing({
      name: 'upper',
      model: { useFactory: upper },
      batchKeys: ['some', 'others'],
      batchSize: [2, 4],
    });

    const message =
      'Serving "upper": batchSize 5 is more than the largest of the allowed sizes, 4; lower the one or extend the other';
    expect(() => serving.setBatchSize(5, 'some')).toThrow(new InvalidServingError(message));
    expect(() => serving.setBatchSize(5)).toThrow(new InvalidServingError(message));
    expect(() => serving.setBatchSize(3, 'some')).not.toThrow();
  });

  it('[4.8] [7.1] setBatchSize refuses a size above the queue limit', () => {
    const [small, large] = [40, 20_000].map((maxRows) =>
      createServing({ name: 'upper', model: { useFactory: upper }, queue: { maxRows } }),
    );

    expect(() => small!.setBatchSize(41)).toThrow(
      'Serving "upper": batchSize 41 is more than queue.maxRows 40, so no batch could ever fill',
    );
    expect(() => large!.setBatchSize(20_000)).not.toThrow();
  });
});
