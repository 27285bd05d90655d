import { describe, expect, it, jest } from '@jest/globals';
import {
  Batch,
  type BatchContext,
  type Container,
  createServing,
  InvalidInputError,
  UnknownKeyError,
  InvalidServingError,
  type ServingHandler,
  ServingLoadError,
  type Tensor,
  type ServingDefinition,
} from 'nestjs-serving';
import { floats } from '../../fixtures/values/tensors.js';
import { useServings } from '../../fixtures/serving/use-servings.js';
import { recordWarnings } from '../../fixtures/recorded-warnings.js';

/** `count` rows of two numbers: n and -n. */
const rowsFrom = (first: number, count: number): Tensor =>
  floats([count, 2], Array.from({ length: count }, (_, i) => [first + i, -first - i]).flat());
const zeros = (count: number): number[] => Array.from({ length: count }, () => 0);

const nest = (x: Tensor): Container => ({ y: x, more: [x, { again: x }] });

interface Seen extends Pick<BatchContext, 'size' | 'padding' | 'key' | 'partition'> {
  readonly data: number[];
}

/** Returns its rows and records its batches. */
function echo(options: Partial<ServingDefinition> = {}): {
  definition: ServingDefinition;
  seen: Seen[];
} {
  const seen: Seen[] = [];
  const useFactory =
    () =>
    (x: Tensor, { size, padding, key, partition }: BatchContext) => {
      seen.push({ data: [...(x.data as Float32Array)], size, padding, key, partition });
      return x;
    };
  return { seen, definition: { name: 'echo', model: { useFactory }, ...options } };
}

const threeKeys = { batchKeys: ['default', 'b', 'c'], batchSize: [2] };
const keyed = (key: string): Batch => Batch.concatenate([rowsFrom(1, 1)]).withKey(key);

const withKey = (batchSize: number) =>
  echo({ batchSize: [2, 4], batchKeys: [{ key: 'own', batchSize }] }).definition;

describe('allowed sizes', () => {
  const start = useServings();

  it.each([
    { rows: 1, padded: 2 },
    { rows: 2, padded: 2 },
    { rows: 3, padded: 4 },
    { rows: 5, padded: 8 },
    { rows: 8, padded: 8 },
  ])(
    '[2.4] $rows rows are padded up to $padded, and the output is cut back',
    async ({ rows, padded }) => {
      const { definition, seen } = echo({ batchSize: [2, 4, 8] });
      const serving = await start(definition);

      expect(await serving.batchedRun(rowsFrom(1, rows))).toEqual(rowsFrom(1, rows));

      const data = [...(rowsFrom(1, rows).data as Float32Array), ...zeros(2 * (padded - rows))];
      expect(seen).toEqual([
        { data, size: rows, padding: padded - rows, key: 'default', partition: 0 },
      ]);
    },
  );

  it.each<[string, Partial<ServingDefinition>, string[]]>([
    ['a function without examples', { batchSize: [2, 4] }, ['default']],
    [
      'a key of three that no example has',
      { ...threeKeys, warmUp: [rowsFrom(1, 1), keyed('b')] },
      ['c'],
    ],
    [
      'examples for every key',
      { ...threeKeys, warmUp: [rowsFrom(1, 1), keyed('b'), keyed('c')] },
      [],
    ],
    ['no sizes', {}, []],
  ])(
    '[M5] Boot warns about allowed sizes that cannot be warmed up: %s',
    async (_, options, cold) => {
      const warnings = recordWarnings();

      await start(echo(options).definition);
      jest.restoreAllMocks();

      const warning = `Serving "echo" cannot run its allowed sizes (of key ${cold.join(', ')}) before it is ready, since it has no example`;
      expect(warnings).toEqual(cold.length > 0 ? [expect.stringContaining(warning)] : []);
    },
  );

  it('[2.4] The largest allowed size is the batch size when none is given', async () => {
    const { definition, seen } = echo({ batchSize: [2, 4] });
    const serving = await start(definition);

    expect(await serving.batchedRun(rowsFrom(1, 9))).toEqual(rowsFrom(1, 9));
    expect(await serving.run(rowsFrom(1, 9))).toEqual(rowsFrom(1, 9));

    expect(seen.map(({ size, padding }) => [size, padding])).toEqual([
      [4, 0],
      [4, 0],
      [1, 1],
      [4, 0],
      [4, 0],
      [1, 1],
    ]);
  });

  it('[2.4] A batch is padded beyond the batch size when that is not an allowed size', async () => {
    const { definition, seen } = echo({
      batchSize: [2, 4],
      batchKeys: [{ key: 'default', batchSize: 3 }],
    });
    const serving = await start(definition);

    expect(await serving.batchedRun(rowsFrom(1, 5))).toEqual(rowsFrom(1, 5));

    expect(seen.map(({ size, padding }) => [size, padding])).toEqual([
      [3, 1],
      [2, 0],
    ]);
  });

  it('[2.4] With one allowed size every batch has that size', async () => {
    const { definition, seen } = echo({ batchSize: [4] });
    const serving = await start(definition);

    const replies = await Promise.all([1, 2].map((n) => serving.batchedRun(rowsFrom(10 * n, n))));

    expect(replies).toEqual([rowsFrom(10, 1), rowsFrom(20, 2)]);
    expect(seen).toMatchObject([{ size: 3, padding: 1, data: [10, -10, 20, -20, 21, -21, 0, 0] }]);
  });

  it('[2.4] [4.7] Each key pads to the sizes', async () => {
    const { definition, seen } = echo({
      batchSize: [4],
      batchKeys: ['some', 'others'],
    });
    const serving = await start(definition);

    const call = (key: string): Promise<unknown> =>
      serving.batchedRun(Batch.concatenate([rowsFrom(1, 2)]).withKey(key));
    await Promise.all(['some', 'others'].map(call));

    expect(seen.map(({ key, padding }) => [key, padding])).toEqual([
      ['some', 2],
      ['others', 2],
    ]);
  });

  it('[2.4] Allowed sizes replace the padding that callers request', async () => {
    const { definition, seen } = echo({ batchSize: [4, 8] });
    const serving = await start(definition);

    expect(await serving.batchedRun(Batch.concatenate([rowsFrom(1, 3)]).pad(4))).toEqual(
      rowsFrom(1, 3),
    );

    expect(seen).toMatchObject([{ size: 3, padding: 1 }]);
  });

  it('[2.4] [2.2] Every leaf of a padded output is cut back, in nested outputs and in lists', async () => {
    const serving = await start({
      name: 'nest',
      batchSize: [4],
      model: { useFactory: () => (x: Tensor) => nest(x) },
    });
    const list = await start({
      name: 'list',
      batchSize: [4],
      model: { useFactory: () => (x: Tensor) => Array.from({ length: x.dims[0]! }, (_, i) => i) },
    });

    expect(await serving.batchedRun(rowsFrom(1, 3))).toEqual(nest(rowsFrom(1, 3)));
    expect(await list.batchedRun(rowsFrom(1, 3))).toEqual([0, 1, 2]);
  });

  it('[2.4] [6.3] A padded batch needs results for its padding rows too', async () => {
    const serving = await start({
      name: 'short',
      batchSize: [4],
      model: { useFactory: () => () => rowsFrom(1, 3) },
    });

    await expect(serving.batchedRun(rowsFrom(1, 3))).rejects.toThrow(
      'axis 0 must have the 4 rows of the batch',
    );
  });

  it('[2.4] Plain values, which have no zero, are refused by a serving that pads', async () => {
    const { definition, seen } = echo({ batchSize: [2, 4] });
    const serving = await start(definition);

    for (const call of [serving.batchedRun('a'), serving.run(Batch.stack(['a', 'b']))]) {
      await expect(call).rejects.toThrow(
        new InvalidInputError(
          'Serving "echo" pads its batches to 2, 4 rows, and plain values cannot be padded; give tensors',
        ),
      );
    }
    expect(seen).toEqual([]);
  });

  it.each([
    [
      { batchSize: [] },
      'option "batchSize" is []; allowed is a whole number from 1 to 1048576, or a list of whole numbers from 1 on, ' +
        'each larger than the one before, or an object of rows, cost, latencyTarget',
    ],
    [{ batchSize: [0, 2] }, 'option "batchSize" is [ 0, 2 ]; allowed is'],
    [{ batchSize: [4, 2] }, 'option "batchSize" is [ 4, 2 ]; allowed is'],
    [{ batchSize: [2, 2] }, 'option "batchSize" is [ 2, 2 ]; allowed is'],
    [{ batchSize: [1.5] }, 'option "batchSize" is [ 1.5 ]; allowed is'],
    [{ batchSize: { rows: [4, 2] } }, 'option "batchSize.rows" is [ 4, 2 ]; allowed is'],
    [{ batchSize: { sizes: [2, 4] } }, 'unknown option "batchSize.sizes" ([ 2, 4 ])'],
    [{ warmUp: rowsFrom(1, 1) }, 'option "warmUp" is'],
  ])('[2.4] [1.9] Invalid allowed sizes are refused at boot: %p', (options, message) => {
    const create = (): unknown => createServing(echo(options as never).definition);

    expect(create).toThrow(InvalidServingError);
    expect(create).toThrow(`Serving "echo" with "useFactory": ${message}`);
  });

  it('[2.4] [4.7] [1.9] Allowed sizes that contradict the options of a key are refused at boot', () => {
    expect(() => createServing(withKey(8))).toThrow(
      'key "own": batchSize 8 is more than the largest of the allowed sizes, 4; lower the one or extend the other',
    );
    expect(() => createServing(withKey(4))).not.toThrow();
  });
});

const keysOf = (...keys: string[]): Batch[] =>
  keys.map((key) => Batch.concatenate([rowsFrom(7, 3)]).withKey(key));

describe('warm-up', () => {
  const start = useServings();

  it('[2.4] [9.2] Warm-up runs every allowed size of every key once on every partition, with the first row of the example', async () => {
    const { definition, seen } = echo({
      batchSize: [1, 3],
      batchKeys: ['a', 'b'],
      partitions: 2,
      warmUp: keysOf('a', 'b'),
    });

    await start(definition);

    const runs = seen.map(({ partition, key, size, padding }) => ({
      partition,
      key,
      size,
      padding,
    }));
    const expected = [0, 1].flatMap((partition) => [
      { partition, key: 'a', size: 1, padding: 0 },
      { partition, key: 'a', size: 3, padding: 0 },
      { partition, key: 'b', size: 1, padding: 0 },
      { partition, key: 'b', size: 3, padding: 0 },
    ]);
    expect(runs).toHaveLength(expected.length);
    expect(runs).toEqual(expect.arrayContaining(expected));
    expect(
      seen.every(({ data }) => data.every((value, i) => value === (i % 2 === 0 ? 7 : -7))),
    ).toBe(true);
  });

  it('[2.4] Warm-up runs a full batch when there are no allowed sizes', async () => {
    const { definition, seen } = echo({ batchSize: 5, warmUp: [rowsFrom(7, 1)] });

    await start(definition);

    expect(seen).toMatchObject([{ size: 5, padding: 0 }]);
  });

  it('[2.4] Warm-up passes its inputs through preprocess, as it does those of callers', async () => {
    const seen: string[][] = [];
    await start({
      name: 'upper',
      batchSize: 2,
      warmUp: ['text'],
      preprocess: (text) => ({ batch: Batch.stack([`<${String(text)}>`]) }),
      model: { useFactory: () => (rows: string[]) => (seen.push(rows), rows) },
      postprocess: () => {
        throw new Error('nobody is to be answered');
      },
    });

    expect(seen).toEqual([['<text>', '<text>']]);
  });

  it('[2.4] [9.2] Warm-up ends before the serving is ready, and emits no events', async () => {
    const steps: string[] = [];
    const serving = createServing({
      name: 'slow',
      batchSize: [2],
      warmUp: [rowsFrom(1, 1)],
      model: {
        useFactory: () => async (x: Tensor) => {
          steps.push(serving.state);
          await Promise.resolve();
          return x;
        },
      },
    });
    serving.events$.subscribe(({ type }) => steps.push(type));

    await serving.start();

    expect([...steps, serving.state]).toEqual(['starting', 'ready']);
    await serving.close();
  });

  it('[2.4] [1.2] Warm-up runs batches of a class', async () => {
    const journal: unknown[] = [];
    class Echo implements ServingHandler {
      init(kind: string): void {
        journal.push(kind);
      }

      handleBatch(batch: Batch, partition: number): { output: unknown } {
        journal.push([batch.size, partition]);
        return { output: batch.consume() };
      }
    }

    await start({
      name: 'echo',
      model: { useClass: Echo },
      batchSize: [1, 2],
      warmUp: [rowsFrom(1, 1)],
    });

    expect(journal).toEqual(['batched', [1, 0], [2, 0]]);
  });

  it.each<[string, () => unknown, string]>([
    ['a throw', () => Promise.reject(new RangeError('no such kernel')), 'no such kernel'],
    [
      'a wrong output',
      () => undefined,
      'A batch of 2 rows needs a list of 2 results, or tensors with 2 rows',
    ],
  ])(
    '[2.4] [9.1] A failed warm-up fails the start with the size and the key: %s',
    async (_, fault, message) => {
      const serving = createServing({
        name: 'faulty',
        batchKeys: ['a', 'b'],
        batchSize: [1, 2],
        warmUp: keysOf('a', 'b'),
        model: {
          useFactory:
            () =>
            (x: Tensor, { key, size }: BatchContext) =>
              key === 'b' && size === 2 ? fault() : x,
        },
      });

      const started = serving.start();

      await expect(started).rejects.toThrow(ServingLoadError);
      await expect(started).rejects.toThrow(
        `Serving "faulty": The warm-up with 2 rows of key "b" failed: `,
      );
      await expect(started).rejects.toThrow(message);
      expect(serving.state).not.toBe('ready');
      await expect(serving.batchedRun(keysOf('a')[0]!)).rejects.toThrow('has not been started');
      await serving.close();
    },
  );

  it.each<[string, unknown]>([
    ['without rows', Batch.empty()],
    ['that is a sequence', [Batch.stack(['a'])].values()],
  ])('[2.4] [1.9] A warm-up example %s fails the start', async (_, example) => {
    const serving = createServing(echo({ warmUp: [example] }).definition);

    await expect(serving.start()).rejects.toMatchObject({
      message: 'Serving "echo": An example must give a batch with rows (input 0 of warmUp)',
      code: 'SERVING_INVALID',
    });
    await serving.close();
  });

  it('[2.4] [1.9] A warm-up example that preprocess refuses fails the start, which names it', async () => {
    const { definition } = echo({ warmUp: ['a', ''] });
    const serving = createServing({
      ...definition,
      preprocess: (input: string) => {
        if (input === '') {
          throw new RangeError('An empty text');
        }
        return { batch: Batch.stack([input]) };
      },
    });

    await expect(serving.start()).rejects.toMatchObject({
      message: 'Serving "echo": An empty text (input 1 of warmUp)',
      code: 'SERVING_INVALID',
    });
    await serving.close();
  });

  it('[2.4] [4.7] A warm-up example of an unknown key fails the start', async () => {
    const serving = createServing(
      echo({ batchKeys: ['en', 'de'], warmUp: keysOf('fr') }).definition,
    );

    await expect(serving.start()).rejects.toMatchObject({
      message: 'Serving "echo" has no key "fr"; its keys are de, en (input 0 of warmUp)',
      cause: expect.any(UnknownKeyError) as unknown,
    });
    await serving.close();
  });
});

describe('padding that callers request', () => {
  const start = useServings();

  it.each([
    {
      batchSize: 8,
      rows: 2,
      pads: [3, 2],
      padding: 4,
      promise: 'The padding of several calls adds up, at most to the batch size',
    },
    {
      batchSize: 16,
      rows: 2,
      pads: [3, 2],
      padding: 5,
      promise: 'The padding of several calls adds up',
    },
    { batchSize: 4, rows: 2, pads: [9, 9], padding: 0, promise: 'A full batch gets no padding' },
  ])('[2.2] $promise', async ({ batchSize, rows, pads, padding }) => {
    const { definition, seen } = echo({ batchSize });
    const serving = await start(definition);

    const replies = await Promise.all(
      pads.map((pad, n) =>
        serving.batchedRun(Batch.concatenate([rowsFrom(10 * n, rows)]).pad(pad)),
      ),
    );

    expect(replies).toEqual(pads.map((_, n) => rowsFrom(10 * n, rows)));
    expect(seen).toMatchObject([{ size: 4, padding }]);
  });

  it('[2.2] [3.1] The padding of an inline run ends at the batch size', async () => {
    const { definition, seen } = echo({ batchSize: 4 });
    const serving = await start(definition);

    expect(await serving.run(Batch.concatenate([rowsFrom(1, 3)]).pad(7))).toEqual(rowsFrom(1, 3));

    expect(seen).toMatchObject([{ size: 3, padding: 1 }]);
  });
});
