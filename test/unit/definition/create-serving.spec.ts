import { describe, expect, it } from '@jest/globals';
import {
  Batch,
  type BatchContext,
  type BatchFunctionContext,
  createServing,
  InvalidOutputError,
  InvalidServingError,
  type ServingHandler,
  ServingLoadError,
} from 'nestjs-serving';
import { floats } from '../../fixtures/values/tensors.js';
import { useServings } from '../../fixtures/serving/use-servings.js';

const partitions = [{ device: 'a' }, { device: 'b' }];
/** The partition options that a class receives. */
const sites = partitions.map((options) => ({ ...options, batchKeys: ['default'] }));

class OnlyInit {
  init(): void {}
}
class OnlyBatches {
  handleBatch(): void {}
}
class Hollow {}

describe('createServing', () => {
  const start = useServings();

  describe('with a function', () => {
    it('[1.1] The factory is called at start, once per partition and key, with the options of the partition', async () => {
      const built: BatchFunctionContext[] = [];
      const serving = await start<string[]>({
        name: 'sites',
        partitions,
        batchKeys: ['en', 'de'],
        model: {
          useFactory: async (site) => {
            built.push(site);
            return (rows: string[]) => rows;
          },
        },
      });

      const atStart = [...built];
      await serving.batchedRun(Batch.stack(['x']).withKey('en'));

      expect(built).toEqual(atStart);
      expect(built.toSorted((a, b) => a.partition - b.partition)).toEqual([
        { partition: 0, options: { device: 'a' }, key: 'en' },
        { partition: 0, options: { device: 'a' }, key: 'de' },
        { partition: 1, options: { device: 'b' }, key: 'en' },
        { partition: 1, options: { device: 'b' }, key: 'de' },
      ]);
    });

    it('[1.1] [4.7] Each batch runs on the function of its key', async () => {
      const serving = await start<unknown[]>({
        name: 'keyed',
        batchKeys: ['en', 'de'],
        model: {
          useFactory:
            ({ key: built }) =>
            (rows: string[], { key }: BatchContext) =>
              rows.map((row) => [row, built, key]),
        },
      });

      const replies = await Promise.all(
        ['en', 'de'].map((key) => serving.batchedRun(Batch.stack(['x']).withKey(key))),
      );

      expect(replies).toEqual([[['x', 'en', 'en']], [['x', 'de', 'de']]]);
    });

    it('[1.1] The function receives the context of the batch beside its rows', async () => {
      const contexts: BatchContext[] = [];
      const serving = await start({
        name: 'context',
        model: {
          useFactory: () => (rows: unknown, context: BatchContext) => (
            contexts.push(context),
            rows
          ),
        },
      });

      await serving.batchedRun(Batch.concatenate([floats([2], [1, 2])]).pad(3));

      expect(contexts).toEqual([
        {
          key: 'default',
          size: 2,
          padding: 3,
          partition: 0,
          hooks: [],
          emit: expect.any(Function),
          isWaiting: expect.any(Function),
        },
      ]);
    });

    it('[1.1] [3.1] [4.7] Inline runs build the function of any key with the first batch of that key', async () => {
      const built: BatchFunctionContext[] = [];
      const serving = await start<string[]>({
        name: 'sites',
        partitions,
        batchKeys: ['en', 'de'],
        model: {
          useFactory: (site) => {
            built.push(site);
            return (rows: string[]) => rows.map((row) => `${row} ${site.key}`);
          },
        },
      });
      expect(built.splice(0)).toHaveLength(4);

      const replies = await Promise.all(
        ['fr', 'fr', 'en'].map((key) => serving.run(Batch.stack(['x']).withKey(key))),
      );

      expect(replies).toEqual([['x fr'], ['x fr'], ['x en']]);
      expect(built).toEqual([
        { partition: 0, options: { device: 'a' }, key: 'fr' },
        { partition: 1, options: { device: 'b' }, key: 'fr' },
      ]);
    });

    it('[1.1] [6.5] A failed factory fails the inline run, and the next run calls the factory again', async () => {
      const cause = new Error('no memory');
      const attempts: string[] = [];
      const serving = createServing<string, string, unknown, unknown>({
        name: 'late',
        model: {
          useFactory: ({ key }) => {
            attempts.push(key);
            return attempts.length === 1 ? Promise.reject(cause) : (rows: string[]) => rows;
          },
        },
      });

      await expect(serving.run('a')).rejects.toThrow(
        new ServingLoadError('Cannot load what the batch needs: no memory', { cause }),
      );
      expect(await serving.run('a')).toBe('a');
      expect(attempts).toEqual(['default', 'default']);
      await serving.close();
    });

    it('[1.1] [1.9] A factory that returns no function fails the inline run', async () => {
      const serving = createServing({
        name: 'wrong',
        model: { useFactory: (() => undefined) as never },
      });

      await expect(serving.run('a')).rejects.toThrow(
        new InvalidServingError(
          'The factory must return a function that runs a batch; for partition 0 and key "default" it returned undefined',
        ),
      );
      await serving.close();
    });

    it('[9.1] A failed factory fails the start with the name of the serving and the reason', async () => {
      const cause = new Error('no memory');
      const serving = createServing({
        name: 'failing',
        model: { useFactory: () => Promise.reject(cause) },
      });

      await expect(serving.start()).rejects.toThrow(
        new ServingLoadError('Serving "failing" could not start: no memory', { cause }),
      );
    });

    it('[1.9] A factory that returns no function fails the start', async () => {
      const serving = createServing({
        name: 'wrong',
        model: { useFactory: (() => ({ run: true })) as never },
      });

      await expect(serving.start()).rejects.toThrow(
        new InvalidServingError(
          'Serving "wrong": The factory must return a function that runs a batch; ' +
            'for partition 0 and key "default" it returned { run: true }',
        ),
      );
    });
  });

  describe('with a class', () => {
    let journal: unknown[];

    class Upper implements ServingHandler<unknown[]> {
      async init(...args: unknown[]): Promise<void> {
        journal = [['init', ...args]];
        await Promise.resolve();
      }

      handleBatch(batch: Batch, partition: number): { output: unknown[]; metadata: unknown } {
        journal.push(['batch', batch.consume(), partition]);
        return {
          output: (batch.consume() as string[]).map((row) => row.toUpperCase()),
          metadata: journal.length,
        };
      }
    }

    it('[1.2] A class is initialised with the options of its partitions and then receives every batch', async () => {
      const serving = await start({
        name: 'upper',
        model: { useClass: Upper },
        partitions,
        batchSize: 2,
      });

      const replies = await serving.batchedRun(Batch.stack(['a', 'b', 'c']));

      expect(replies).toEqual(['A', 'B', 'C']);
      expect(journal).toEqual([
        ['init', 'batched', sites],
        ['batch', ['a', 'b'], 0],
        ['batch', ['c'], 1],
      ]);
    });

    it.each<[string, () => object, string]>([
      [
        'without handleBatch',
        () => new OnlyInit(),
        'OnlyInit cannot run batches: it has no method handleBatch;',
      ],
      [
        'without init',
        () => new OnlyBatches(),
        'OnlyBatches cannot run batches: it has no method init;',
      ],
      [
        'without either',
        () => new Hollow(),
        'Hollow cannot run batches: it has no method init and no method handleBatch;',
      ],
      [
        'whose init is no function',
        () => Object.assign(new OnlyBatches(), { init: 1 }),
        'it has no method init;',
      ],
      [
        'that is no object of a class',
        () => Object.create(null) as object,
        'cannot run batches: it has no method init',
      ],
    ])('[H8] Boot and run() refuse a class %s and name it', async (_, make, message) => {
      const serving = createServing(
        { name: 'hollow', model: { useClass: Upper } },
        () => make() as ServingHandler,
      );

      await expect(serving.start()).rejects.toThrow(InvalidServingError);
      await expect(serving.start()).rejects.toThrow('Serving "hollow": ');
      await expect(serving.start()).rejects.toThrow(message);
      await expect(serving.run('a')).rejects.toThrow(message);
      await serving.close();
    });

    it('[H8] A class may inherit its methods or create them in its constructor', async () => {
      class Heir extends Upper {}
      class Made {
        readonly init = (): void => {};
        readonly handleBatch = (batch: Batch) => ({ output: batch.consume() });
      }

      expect(await (await start({ name: 'heir', model: { useClass: Heir } })).batchedRun('a')).toBe(
        'A',
      );
      expect(await (await start({ name: 'made', model: { useClass: Made } })).batchedRun('a')).toBe(
        'a',
      );
    });

    it('[1.2] [3.1] A class that only runs inline is initialised with the options of one partition', async () => {
      const serving = createServing({ name: 'upper', model: { useClass: Upper }, partitions });

      expect(await Promise.all([serving.run('a'), serving.run('b')])).toEqual(['A', 'B']);

      expect(journal).toEqual([
        ['init', 'inline', sites.slice(0, 1)],
        ['batch', ['a'], 0],
        ['batch', ['b'], 0],
      ]);
    });

    it('[1.2] A class is initialised once for batched and inline runs', async () => {
      const serving = await start({ name: 'upper', model: { useClass: Upper } });

      await serving.batchedRun('a');
      await serving.run('b');

      expect(journal).toHaveLength(3);
    });

    it('[1.2] [4.7] A class is initialised with all keys at start, or with the key of its first inline run', async () => {
      const batchKeys = ['en', 'de'];
      await start({ name: 'upper', model: { useClass: Upper }, batchKeys });
      expect(journal).toEqual([['init', 'batched', [{ batchKeys }]]]);

      const inline = createServing({ name: 'upper', model: { useClass: Upper }, batchKeys });
      await inline.run(Batch.stack(['a']).withKey('fr'));
      await inline.run(Batch.stack(['a']).withKey('en'));

      expect(journal).toEqual([
        ['init', 'inline', [{ batchKeys: ['fr'] }]],
        ['batch', ['a'], 0],
        ['batch', ['a'], 0],
      ]);
      await inline.close();
    });

    it('[1.2] A class that has run inline is initialised again for its partitions at start', async () => {
      const kinds: unknown[] = [];
      class Twice extends Upper {
        override async init(...args: unknown[]): Promise<void> {
          kinds.push(args[0]);
          await super.init(...args);
        }
      }
      const serving = createServing({ name: 'upper', model: { useClass: Twice } });

      await serving.run('a');
      await serving.start();
      await Promise.all([serving.batchedRun('b'), serving.run('c')]);

      expect(kinds).toEqual(['inline', 'batched']);
      await serving.close();
    });

    it('[1.2] [6.5] A failed init fails the inline run, and the next run initialises the class again', async () => {
      const cause = new Error('no weights');
      let attempts = 0;
      class Late extends Upper {
        override init(...args: unknown[]): Promise<void> {
          return attempts++ === 0 ? Promise.reject(cause) : super.init(...args);
        }
      }
      const serving = createServing<string, string, unknown, unknown>({
        name: 'late',
        model: { useClass: Late },
      });

      const replies = await Promise.allSettled([serving.run('a'), serving.run('b')]);

      const reason = new ServingLoadError('Cannot load what the batch needs: no weights', {
        cause,
      });
      expect(replies).toEqual([
        { status: 'rejected', reason },
        { status: 'fulfilled', value: 'B' },
      ]);
      expect(attempts).toBe(2);
      await serving.close();
    });

    it('[1.2] [1.6] The metadata of a class reaches postprocess', async () => {
      const serving = await start({
        name: 'upper',
        model: { useClass: Upper },
        postprocess: (output, { metadata }) => [output, metadata],
      });

      expect(await serving.batchedRun('a')).toEqual(['A', 2]);
    });

    it.each<[string, () => unknown, string]>([
      ['a list', () => ['A'], `[ 'A' ]`],
      ['a promise of a list', () => Promise.resolve(['A']), `[ 'A' ]`],
      ['nothing', () => undefined, 'undefined'],
      ['null', async () => null, 'null'],
      ['text', () => 'A', '"A"'],
      ['metadata alone', () => ({ metadata: 1 }), '{ metadata: 1 }'],
    ])(
      '[1.2] [1.6] A class that returns no output fails its batch: %s',
      async (_, result, shown) => {
        class Wrong extends Upper {
          override handleBatch(): never {
            return result() as never;
          }
        }
        const serving = await start({ name: 'wrong', model: { useClass: Wrong } });

        await expect(serving.batchedRun('a')).rejects.toThrow(
          new InvalidOutputError(
            `Serving "wrong": Wrong.handleBatch must return { output, metadata? }, it returned ${shown}`,
          ),
        );
      },
    );

    it('[9.1] A failed init fails the start', async () => {
      const cause = new Error('no weights');
      class Failing extends Upper {
        override init(): Promise<void> {
          return Promise.reject(cause);
        }
      }

      await expect(
        createServing({ name: 'failing', model: { useClass: Failing } }).start(),
      ).rejects.toThrow(
        new ServingLoadError('Serving "failing" could not start: no weights', { cause }),
      );
    });
  });

  describe('with a generator', () => {
    it.each<[string, unknown, string]>([
      ['text', 'ab', 'it yielded "ab"'],
      ['nothing', undefined, 'it yielded undefined'],
      ['an object', { output: ['a', 'b'] }, `it yielded { output: [ 'a', 'b' ] }`],
      ['a list that is too short', ['a'], 'it yielded a list of 1'],
      ['a list that is too long', ['a', 'b', 'c'], 'it yielded a list of 3'],
      ['a tensor', floats([2], [1, 2]), 'it yielded'],
    ])('[8.4] [1.6] A generator that yields %s fails its batch', async (_, step, message) => {
      const serving = await start({
        name: 'steps',
        model: {
          useFactory: () =>
            async function* (rows: string[]) {
              yield rows;
              yield step;
            },
        },
      });

      const reply = serving.batchedRun(Batch.stack(['a', 'b']));

      await expect(reply).rejects.toThrow(InvalidOutputError);
      await expect(reply).rejects.toThrow(
        'A generator must yield, step by step, a list with an entry for each of the 2 rows of its batch; ',
      );
      await expect(reply).rejects.toThrow(message);
    });
  });

  describe('with postprocessStream', () => {
    it.each<[string, unknown, string]>([
      ['nothing', undefined, 'undefined'],
      ['a number', 3, '3'],
      ['a list', ['a'], `[ 'a' ]`],
      ['a promise', Promise.resolve(), 'a promise'],
    ])(
      '[1.5] [8.2] A postprocessStream that returns %s fails its call',
      async (_, result, shown) => {
        const serving = await start({
          name: 'shaped',
          model: { useFactory: () => (rows: string[]) => rows },
          postprocessStream: () => result as never,
        });

        const events = serving.stream('a')[Symbol.asyncIterator]();

        const first = events.next();
        await expect(first).rejects.toThrow(InvalidServingError);
        await expect(first).rejects.toThrow(
          `Serving "shaped": postprocessStream must return an async iterable or an Observable, it returned ${shown}`,
        );
      },
    );
  });

  it('[1.9] An invalid definition and one that needs an application are refused', () => {
    const existing = { name: 'existing', model: { useExisting: 'TOKEN' } };

    expect(() => createServing({ name: 'a', model: { useFactory: 'x' } } as never)).toThrow(
      InvalidServingError,
    );
    expect(() => createServing(existing)).toThrow(
      new InvalidServingError(
        'Serving "existing": useExisting needs the application that has the provider; use ServingModule',
      ),
    );
  });
});
