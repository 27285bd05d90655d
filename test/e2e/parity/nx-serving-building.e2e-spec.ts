import { describe, expect, it, jest } from '@jest/globals';
import type { INestApplication } from '@nestjs/common';
import { Test } from '@nestjs/testing';
import {
  Batch,
  type BatchFunctionContext,
  createServing,
  defineServing,
  getServingToken,
  InvalidBatchError,
  UnknownKeyError,
  InvalidOutputError,
  InvalidServingError,
  type PreprocessResult,
  type ServingDefinition,
  ServingLoadError,
  ServingModule,
  ServingService,
  UnknownServingError,
  withMetadata,
} from 'nestjs-serving';
import { recordBatches } from 'nestjs-serving/testing';
import { availableParallelism } from 'node:os';
import { doubled, doublingClass } from '../../fixtures/batching/doubling.js';
import { floats } from '../../fixtures/values/tensors.js';
import { useServings } from '../../fixtures/serving/use-servings.js';
import { worker } from '../../fixtures/partitions/worker.js';

const double = () => doubled;
const pair = (): Batch => Batch.stack([floats([2], [1, 2]), floats([2], [3, 4])]);
const doubledPair = floats([2, 2], [2, 4, 6, 8]);

const applicationOf = async (...servings: ServingDefinition[]): Promise<INestApplication> => {
  const testing = await Test.createTestingModule({
    imports: [ServingModule.forRoot({ servings })],
  }).compile();
  return testing.createNestApplication({ logger: false });
};

describe('Building servings, like Nx.Serving', () => {
  const serve = useServings();

  it('[1.1] A factory builds the batch function once per partition and key, with the options of the partition', async () => {
    const sites: BatchFunctionContext[] = [];
    const partitions = [{ deviceId: 0 }, { deviceId: 1 }];
    const serving = await serve({
      name: 'sites',
      model: { useFactory: (site) => (sites.push(site), doubled) },
      batchKeys: ['short', 'long'],
      partitions,
    });
    for (const key of ['short', 'long', 'short']) {
      await serving.batchedRun(pair().withKey(key));
    }

    expect(sites.toSorted((a, b) => a.partition - b.partition)).toEqual(
      partitions.flatMap((options, partition) =>
        ['short', 'long'].map((key) => ({ key, partition, options })),
      ),
    );
  });

  it('[1.1] A factory may build a function of its own for every key', async () => {
    const serving = await serve({
      name: 'by key',
      batchKeys: ['double', 'half'],
      model: {
        useFactory: ({ key }) =>
          key === 'double' ? doubled : (rows: number[]) => rows.map((row) => row / 2),
      },
    });
    const call = (key: string) => serving.batchedRun(Batch.stack([3, 5]).withKey(key));

    expect(await Promise.all([call('double'), call('half')])).toEqual([
      [6, 10],
      [1.5, 2.5],
    ]);
  });

  it('[1.1] [9.1] A factory that returns no function fails the start with the returned value', async () => {
    const serving = createServing({
      name: 'no function',
      model: { useFactory: (() => floats([1], [1])) as never },
    });

    await expect(serving.start()).rejects.toThrow(
      /^Serving "no function": The factory must return a function that runs a batch; for partition 0 and key "default" it returned /,
    );
  });

  it('[1.2] A class is initialised once with the options and keys of every partition', async () => {
    const { Doubling, inits, batches } = doublingClass();
    const serving = await serve({
      name: 'class',
      model: { useClass: Doubling },
      partitions: [{ gpu: 'a' }, { gpu: 'b' }],
      batchKeys: ['x', 'y'],
    });

    expect(await serving.batchedRun(pair().withKey('y'))).toEqual(doubledPair);

    const batchKeys = ['x', 'y'];
    expect(inits).toEqual([
      [
        'batched',
        [
          { gpu: 'a', batchKeys },
          { gpu: 'b', batchKeys },
        ],
      ],
    ]);
    expect(batches).toEqual([
      { batch: expect.objectContaining({ size: 2, padding: 0, key: 'y' }), partition: 0 },
    ]);
    expect(batches[0]!.batch.consume()).toEqual(floats([2, 2], [1, 2, 3, 4]));
  });

  it('[1.2] [9.1] An init that throws fails the start', async () => {
    const { Doubling } = doublingClass();
    const cause = new RangeError('no such device');
    class Failing extends Doubling {
      override init(): void {
        throw cause;
      }
    }

    await expect(
      createServing({ name: 'failing', model: { useClass: Failing } }).start(),
    ).rejects.toThrow(
      new ServingLoadError('Serving "failing" could not start: no such device', { cause }),
    );
  });

  it.each(['run', 'batchedRun'] as const)(
    '[1.2] [6.3] A handleBatch without { output } fails %s with the names of class and serving and the value',
    async (method) => {
      class Wrong {
        init(): void {}
        handleBatch(): never {
          return 'no output' as never;
        }
      }
      const serving = await serve({ name: 'wrong', model: { useClass: Wrong } });

      await expect(serving[method](pair())).rejects.toThrow(
        new InvalidOutputError(
          'Serving "wrong": Wrong.handleBatch must return { output, metadata? }, it returned "no output"',
        ),
      );
    },
  );

  it.each<[string, Partial<ServingDefinition>, unknown]>([
    ['none from a function', { model: { useFactory: double } }, undefined],
    [
      'from a function beside its output',
      {
        model: { useFactory: () => (rows: unknown) => withMetadata(doubled(rows), { on: 'cpu' }) },
      },
      { on: 'cpu' },
    ],
    ['from a class in its result', { model: { useClass: doublingClass().Doubling } }, 'doubled'],
    ['from a file in its thread', { model: { useFile: worker('doubling') } }, 'doubled'],
  ])('[1.6] Metadata reaches postprocess: %s', async (_, definition, metadata) => {
    const serving = await serve({
      name: 'said',
      ...definition,
      postprocess: (_output, said) => said.metadata,
    } as ServingDefinition);

    expect(await serving.batchedRun(1)).toEqual(metadata);
  });

  it('[1.5] preprocess and postprocess run once per call, with info that is private to it', async () => {
    const seen: unknown[] = [];
    const serving = await serve(
      defineServing({
        name: 'pre and post',
        batchSize: 2,
        preprocess: (numbers: number[]) => (
          seen.push(['pre', numbers]),
          { batch: Batch.stack(numbers), info: { of: numbers } }
        ),
        model: { useFactory: double },
        postprocess: (output: number[], { info }) => (seen.push(['post', output]), [output, info]),
      }),
    );
    const inputs = [[1, 2, 3], [4]];

    const replies = await Promise.all(inputs.map((input) => serving.batchedRun(input)));

    expect(replies).toEqual([
      [[2, 4, 6], { of: [1, 2, 3] }],
      [[8], { of: [4] }],
    ]);
    expect((replies as { of: unknown }[][])[0]![1]!.of).toBe(inputs[0]);
    expect(seen).toEqual([
      ['pre', [1, 2, 3]],
      ['pre', [4]],
      ['post', [2, 4, 6]],
      ['post', [8]],
    ]);
  });

  it.each([[undefined], [[1, 2]], ['a batch']])(
    '[1.5] A preprocess that returns %j fails its call with callback and value, and nothing runs',
    async (prepared) => {
      const batchFunction = jest.fn(doubled);
      const serving = await serve({
        name: 'prepares',
        model: { useFactory: () => batchFunction },
        preprocess: (input) => (input === 1 ? { batch: input } : prepared) as PreprocessResult,
      });

      const [good, bad] = await Promise.allSettled([serving.batchedRun(1), serving.batchedRun(2)]);

      expect(good).toEqual({ status: 'fulfilled', value: 2 });
      expect(bad).toEqual({
        status: 'rejected',
        reason: expect.objectContaining({
          code: 'SERVING_INVALID',
          message: expect.stringMatching(
            /^Serving "prepares": preprocess must return \{ batch, info\? \}, it returned /,
          ),
        }),
      });
      expect(batchFunction.mock.calls.map(([rows]) => rows)).toEqual([[1]]);
    },
  );

  it.each<[string, unknown]>([
    ['a batch', pair()],
    ['tensors', floats([2, 2], [1, 2, 3, 4])],
    [
      'a sequence of batches',
      [Batch.stack([floats([2], [1, 2])]), Batch.stack([floats([2], [3, 4])])],
    ],
  ])('[1.5] Without preprocess the input of a call can be %s', async (_, input) => {
    const serving = await serve({ name: 'plain', model: { useFactory: double } });

    expect(await serving.batchedRun(input)).toEqual(doubledPair);
  });

  it.each(['run', 'batchedRun'] as const)(
    '[2.3] %s refuses a batch without rows, also one from preprocess',
    async (method) => {
      const batchFunction = jest.fn(doubled);
      const plain = await serve({ name: 'plain', model: { useFactory: () => batchFunction } });
      const prepares = await serve({
        name: 'prepares',
        model: { useFactory: () => batchFunction },
        preprocess: () => ({ batch: Batch.empty() }),
      });

      for (const serving of [plain, prepares]) {
        await expect(serving[method](Batch.empty())).rejects.toThrow(InvalidBatchError);
      }
      expect(batchFunction).not.toHaveBeenCalled();
    },
  );

  it('[1.9] A derived definition leaves its base unchanged', async () => {
    const base = defineServing({ name: 'base', model: { useFactory: double }, batchSize: 2 });
    const derived = { ...base, name: 'derived', batchSize: 4 };
    const [small, large] = [await serve(base), await serve(derived)];
    const [ofSmall, ofLarge] = [recordBatches(small), recordBatches(large)];

    await Promise.all(
      [small, large].map((serving) => serving.batchedRun(Batch.stack([1, 2, 3, 4]))),
    );

    expect([ofSmall, ofLarge].map((batches) => batches.map(({ rows }) => rows))).toEqual([
      [2, 2],
      [4],
    ]);
  });

  it.each<[string, object, RegExp]>([
    [
      'without a name',
      { name: undefined },
      /option "name" of a serving is undefined; allowed is a string that is not empty/,
    ],
    [
      'with an unknown option',
      { hibernateAfter: 1 },
      /unknown option "hibernateAfter" \(1\); known are /,
    ],
    [
      'with a batch size of 0',
      { batchSize: 0 },
      /option "batchSize" is 0; allowed is a whole number from 1 to /,
    ],
    [
      'with a negative timeout',
      { batchTimeout: -1 },
      /option "batchTimeout" is -1; allowed is milliseconds from 0 to /,
    ],
    [
      'with two batch sizes that contradict each other',
      { batchSize: [15], batchKeys: [{ key: 'default', batchSize: 30 }] },
      /batchSize 30 .* allowed sizes, 15/,
    ],
    [
      'with a postprocess that is no function',
      { postprocess: 'upper' },
      /option "postprocess" is "upper"; allowed is a function/,
    ],
    [
      'with options without their key',
      { batchKeys: [{ batchSize: 2 }] },
      /option "batchKeys" is .*; allowed is a list of different keys/,
    ],
    [
      'with two ways to run a batch',
      { model: { useFactory: () => () => [], useFile: worker('echo') } },
      /has useFactory and useFile; as its model give a file, endpoint\(\), or an object with exactly one of /,
    ],
    [
      'with no way to run a batch',
      { model: { useFactory: undefined } },
      /has nothing to run its batches; as its model give /,
    ],
  ])(
    '[1.9] A definition %s is refused with the serving, the option and the allowed values',
    (_, options, message) => {
      const definition = {
        name: 'wrong',
        model: { useFactory: double },
        ...options,
      } as ServingDefinition;

      expect(() => createServing(definition)).toThrow(InvalidServingError);
      expect(() => createServing(definition)).toThrow(message);
    },
  );

  it('[4.12] The defaults are batches of 32, no timeout and one partition', async () => {
    const serving = await serve({ name: 'defaults', model: { useFactory: double } });
    const batches = recordBatches(serving);

    await serving.batchedRun(Batch.stack(Array.from({ length: 33 }, (_, i) => i)));

    expect(
      batches.map(({ rows, batchSize, reason, partition }) => [rows, batchSize, reason, partition]),
    ).toEqual([
      [32, 32, 'full', 0],
      [1, 32, 'idle', 0],
    ]);
  });

  it('[5.1] Automatic partitions are as many as the cores allow', async () => {
    const { Doubling, inits } = doublingClass();
    await serve({ name: 'per device', model: { useClass: Doubling }, partitions: true });

    expect(inits.map(([, partitions]) => partitions.length)).toEqual([
      Math.max(1, availableParallelism() - 1),
    ]);
  });

  it('[8.2] One serving streams or replies, as each call requests', async () => {
    const serving = await serve({ name: 'both', model: { useFactory: double } });
    const events: unknown[] = [];
    for await (const event of serving.stream(pair())) {
      events.push(event);
    }

    expect(await serving.batchedRun(pair())).toEqual(doubledPair);
    expect(events).toEqual([
      { batch: { offset: 0, rows: 2 }, output: doubledPair, metadata: undefined },
    ]);
  });

  describe('in an application', () => {
    it('[9.1] [9.2] A serving is initialised before the application and ready only then', async () => {
      const { Doubling, inits } = doublingClass();
      const application = await applicationOf({ name: 'early', model: { useClass: Doubling } });
      const servings = application.get(ServingService);
      const before = [inits.length, servings.isReady];

      await application.init();

      expect([before, [inits.length, servings.isReady]]).toEqual([
        [0, false],
        [1, true],
      ]);
      expect(await servings.batchedRun('early', pair())).toEqual(doubledPair);
      await application.close();
    });

    it('[10.5] Two servings with one name are refused with the name', async () => {
      const twin = { name: 'twin', model: { useFactory: double } };

      await expect(async () => applicationOf(twin, { ...twin })).rejects.toThrow(
        new InvalidServingError(
          'Serving "twin" is registered more than once; names are unique in an application',
        ),
      );
    });

    it('[10.5] An unknown name is refused with the list of known ones', async () => {
      const application = await applicationOf({ name: 'known', model: { useFactory: double } });
      await application.init();

      await expect(application.get(ServingService).batchedRun('unknown', 1)).rejects.toThrow(
        UnknownServingError,
      );
      await expect(application.get(ServingService).batchedRun('unknown', 1)).rejects.toThrow(
        /"unknown".*known/,
      );
      expect(
        await application
          .get<{ run(input: number): Promise<number> }>(getServingToken('known'))
          .run(2),
      ).toBe(4);
      await application.close();
    });
  });

  it('[4.7] An unknown key is refused with the sorted list of known keys', async () => {
    const batchFunction = jest.fn(doubled);
    const serving = await serve({
      name: 'keyed',
      model: { useFactory: () => batchFunction },
      batchKeys: ['long', 'double'],
    });

    await expect(serving.batchedRun(pair())).rejects.toThrow(
      new UnknownKeyError(
        'Serving "keyed" has no key "default"; its keys are double, long; name one: batch.withKey(key)',
      ),
    );
    expect(batchFunction).not.toHaveBeenCalled();
  });
});
