import { describe, expect, it } from '@jest/globals';
import {
  Batch,
  type BatchContext,
  type BatchFunctionSite,
  createServing,
  InvalidOutputError,
  InvalidServingError,
  type ServingHandler,
  ServingLoadError,
} from 'nestjs-serving';
import { floats } from '../../fixtures/tensors.js';
import { useServings } from '../../fixtures/use-servings.js';

const partitions = [{ device: 'a' }, { device: 'b' }];
/** What a class is told of them. */
const sites = partitions.map((options) => ({ ...options, batchKeys: ['default'] }));

describe('createServing', () => {
  const start = useServings();

  describe('of a function', () => {
    it('[1.1] calls the factory once per partition and key, at start and with the options of the partition', async () => {
      const built: BatchFunctionSite[] = [];
      const serving = await start<string[]>({
        name: 'sites',
        partitions,
        batchKeys: ['en', 'de'],
        useFactory: async (site) => {
          built.push(site);
          return (rows: string[]) => rows;
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

    it('[1.1] [4.7] gives each batch to the function of its key', async () => {
      const serving = await start<unknown[]>({
        name: 'keyed',
        batchKeys: ['en', 'de'],
        useFactory:
          ({ key: built }) =>
          (rows: string[], { key }: BatchContext) =>
            rows.map((row) => [row, built, key]),
      });

      const replies = await Promise.all(['en', 'de'].map((key) => serving.batchedRun(Batch.stack(['x']).withKey(key))));

      expect(replies).toEqual([[['x', 'en', 'en']], [['x', 'de', 'de']]]);
    });

    it('[1.1] tells the function about the batch beside its rows', async () => {
      const contexts: BatchContext[] = [];
      const serving = await start({
        name: 'context',
        useFactory: () => (rows: unknown, context: BatchContext) => (contexts.push(context), rows),
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

    it('[9.1] fails to start when the factory fails, with the name and the reason', async () => {
      const cause = new Error('no memory');
      const serving = createServing({ name: 'failing', useFactory: () => Promise.reject(cause) });

      await expect(serving.start()).rejects.toThrow(
        new ServingLoadError('Serving "failing" could not start: no memory', { cause }),
      );
    });

    it('[1.9] fails to start when the factory returns no function', async () => {
      const serving = createServing({ name: 'wrong', useFactory: (() => ({ run: true })) as never });

      await expect(serving.start()).rejects.toThrow(
        new InvalidServingError(
          'Serving "wrong": The factory must return a function that runs a batch; ' +
            'for partition 0 and key "default" it returned { run: true }',
        ),
      );
    });
  });

  describe('of a class', () => {
    let journal: unknown[];

    class Upper implements ServingHandler<unknown[]> {
      async init(...args: unknown[]): Promise<void> {
        journal = [['init', ...args]];
        await Promise.resolve();
      }

      handleBatch(batch: Batch, partition: number): { output: unknown[]; metadata: unknown } {
        journal.push(['batch', batch.consume(), partition]);
        return { output: (batch.consume() as string[]).map((row) => row.toUpperCase()), metadata: journal.length };
      }
    }

    it('[1.2] initialises it with the options of its partitions, then gives it every batch', async () => {
      const serving = await start({ name: 'upper', useClass: Upper, partitions, batchSize: 2 });

      const replies = await serving.batchedRun(Batch.stack(['a', 'b', 'c']));

      expect(replies).toEqual(['A', 'B', 'C']);
      expect(journal).toEqual([
        ['init', 'process', sites],
        ['batch', ['a', 'b'], 0],
        ['batch', ['c'], 1],
      ]);
    });

    it('[1.2] [3.1] initialises it inline with the options of one partition when it only runs inline', async () => {
      const serving = createServing({ name: 'upper', useClass: Upper, partitions });

      expect(await Promise.all([serving.run('a'), serving.run('b')])).toEqual(['A', 'B']);

      expect(journal).toEqual([
        ['init', 'inline', sites.slice(0, 1)],
        ['batch', ['a'], 0],
        ['batch', ['b'], 0],
      ]);
    });

    it('[1.2] initialises it once, however it is then called', async () => {
      const serving = await start({ name: 'upper', useClass: Upper });

      await serving.batchedRun('a');
      await serving.run('b');

      expect(journal).toHaveLength(3);
    });

    it('[1.2] [1.6] hands its metadata to postprocess', async () => {
      const serving = await start({
        name: 'upper',
        useClass: Upper,
        postprocess: (output, { metadata }) => [output, metadata],
      });

      expect(await serving.batchedRun('a')).toEqual(['A', 2]);
    });

    it('[1.2] fails a batch for which it returns no output', async () => {
      class Wrong extends Upper {
        override handleBatch(): never {
          return ['A'] as never;
        }
      }
      const serving = await start({ name: 'wrong', useClass: Wrong });

      await expect(serving.batchedRun('a')).rejects.toThrow(
        new InvalidOutputError(`Wrong.handleBatch must return { output, metadata? }, it returned [ 'A' ]`),
      );
    });

    it('[9.1] fails to start when it cannot be initialised', async () => {
      const cause = new Error('no weights');
      class Failing extends Upper {
        override init(): Promise<void> {
          return Promise.reject(cause);
        }
      }

      await expect(createServing({ name: 'failing', useClass: Failing }).start()).rejects.toThrow(
        new ServingLoadError('Serving "failing" could not start: no weights', { cause }),
      );
    });
  });

  it('[1.9] refuses a definition that is at fault, and one that needs an application', () => {
    const existing = { name: 'existing', useExisting: 'TOKEN' };

    expect(() => createServing({ name: 'a', useFactory: 'x' } as never)).toThrow(InvalidServingError);
    expect(() => createServing(existing)).toThrow(
      new InvalidServingError('Serving "existing": useExisting needs the application that has the provider; use ServingModule'),
    );
  });
});
