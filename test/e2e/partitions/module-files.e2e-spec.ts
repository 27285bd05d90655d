import { fileURLToPath } from 'node:url';
import { threadId } from 'node:worker_threads';
import { describe, expect, it } from '@jest/globals';
import {
  Batch,
  BatchFailedError,
  InvalidInputError,
  InvalidOutputError,
  InvalidServingError,
  type PartitionOptions,
  ServingLoadError,
} from 'nestjs-serving';
import { floats } from '../../fixtures/values/tensors.js';
import { useServings } from '../../fixtures/serving/use-servings.js';
import { worker } from '../../fixtures/partitions/worker.js';

/** The reply of `workers/site.mjs` to a row. */
interface Site {
  readonly row: string;
  readonly key: string;
  /** The ids of its process and thread. */
  readonly thread: string;
  readonly builds: { readonly key: string; readonly partition: number; readonly options: object }[];
}

const mainThread = `${process.pid}/${threadId}`;

describe.each(['thread', 'process'] as const)(
  'A serving of a module file, in a %s',
  (isolation) => {
    const serve = useServings();
    const site = worker('site');

    it('[1.4] [5.1] The setup runs once per partition and key in the worker of the partition, with its options', async () => {
      const partitions = [{ device: 'left' }, { device: 'right' }];
      const serving = await serve<Site[]>({
        name: 'site',
        model: { useFile: site, isolation },
        batchKeys: ['a', 'b'],
        partitions,
      });
      const call = (key: string): Promise<Site[]> =>
        serving.batchedRun(Batch.stack(['row']).withKey(key));

      const replies = [
        ...(await Promise.all([call('a'), call('b')])),
        ...(await Promise.all([call('a'), call('b')])),
      ];

      const sites = replies.map(([first]) => first!);
      expect(sites.map(({ key }) => key)).toEqual(['a', 'b', 'a', 'b']);
      const threads = new Map(sites.map(({ thread, builds }) => [thread, builds]));
      expect(threads).not.toContain(mainThread);
      expect([...threads.values()].toSorted(([a], [b]) => a!.partition - b!.partition)).toEqual(
        partitions.map((options, partition) =>
          ['a', 'b'].map((key) => ({ key, partition, options })),
        ),
      );
    });

    it('[9.5] The options that prepare returns reach the worker of every partition, beside its own', async () => {
      const partitions = [{ device: 'left' }, { device: 'right', name: 'own' }];
      const prepared = { weights: Float32Array.of(1, 2), name: 'prepared' };
      const threads: string[] = [];
      const serving = await serve<Site>({
        name: 'site',
        model: {
          useFile: site,
          isolation,
          async prepare({ signal, log, warn }) {
            threads.push(mainThread);
            expect([signal.aborted, typeof log, typeof warn]).toEqual([
              false,
              'function',
              'function',
            ]);
            return prepared;
          },
        },
        batchSize: 1,
        partitions,
      });

      const replies = await Promise.all(['a', 'b'].map((row) => serving.batchedRun(row)));
      expect(threads).toEqual([mainThread]);

      const builds = replies.map((reply) => reply.builds[0]!);
      expect(builds.toSorted((one, other) => one.partition - other.partition)).toEqual(
        partitions.map((own, partition) => ({
          key: 'default',
          partition,
          options: { ...own, ...prepared },
        })),
      );
      const inline = await serving.run('c');
      expect(inline.builds[0]!.options).toMatchObject(prepared);
    });

    it('[9.5] [9.1] A prepare that fails, or returns what cannot be sent, fails the start with the reason', async () => {
      const failures: readonly [() => PartitionOptions | Promise<PartitionOptions>, string][] = [
        [
          () => Promise.reject(new ServingLoadError('no weights here')),
          'Serving "site": no weights here',
        ],
        [() => Promise.reject(new Error('no disk')), 'no disk'],
        [
          () => {
            throw new RangeError('thrown at once');
          },
          'thrown at once',
        ],
        [() => ({ of: () => 1 }), 'could not be cloned'],
      ];
      for (const [prepare, message] of failures) {
        const starting = serve({ name: 'site', model: { useFile: site, isolation, prepare } });
        await expect(starting).rejects.toThrow(message);
      }
    });

    it('[1.6] The metadata of a module reaches postprocess for every caller in the batch', async () => {
      const serving = await serve({
        name: 'site',
        model: { useFile: site, isolation },
        postprocess: (output, { metadata }) => ({ row: (output as Site).row, metadata }),
      });

      const replies = await Promise.all(['x', 'y'].map((row) => serving.batchedRun(row)));

      const metadata = { key: 'default', partition: 0, size: 2, padding: 0 };
      expect(replies).toEqual([
        { row: 'x', metadata },
        { row: 'y', metadata },
      ]);
    });

    it('[1.4] [3.1] [4.7] [6.5] Inline runs set a module up for other keys when needed, and a failed setup is repeated', async () => {
      const serving = await serve<string[]>({
        name: 'late',
        model: { useFile: worker('late'), isolation },
        batchKeys: ['en'],
      });
      const call = (key: string): Promise<string[]> =>
        serving.run(Batch.stack(['row']).withKey(key));

      expect(await call('en')).toEqual(['row, 1 time']);
      await expect(call('fr')).rejects.toThrow(ServingLoadError);
      await expect(call('de')).rejects.toThrow(
        'Cannot load what the batch needs: no weights for de',
      );
      expect(await Promise.all(['fr', 'de', 'fr'].map((key) => call(key)))).toEqual([
        ['row, 2 times'],
        ['row, 2 times'],
        ['row, 2 times'],
      ]);
    });

    it('[3.1] An inline run executes in the worker of the partition', async () => {
      const serving = await serve<Site>({ name: 'site', model: { useFile: site, isolation } });

      const [batched, alone] = [await serving.batchedRun('x'), await serving.run('x')];

      expect(alone.thread).toBe(batched.thread);
      expect(alone.thread).not.toBe(mainThread);
    });

    it.each<[string, unknown]>([
      [
        'plain objects with typed arrays, dates, maps and big integers',
        { at: new Date(0), of: [Int8Array.of(1)], by: new Map([[1n, /x/]]) },
      ],
      ['undefined', undefined],
      ['null', null],
      ['empty lists', []],
      ['NaN and negative zero', [NaN, -0]],
      ['a class instance, which becomes a plain object', { x: 1 }],
      ['a list of strings, numbers and truth values', ['', 0, false]],
    ])('[1.7] A row crosses to the worker and back: %s', async (_, row) => {
      const serving = await serve({ name: 'echo', model: { useFile: worker('echo'), isolation } });

      expect(await Promise.all([serving.batchedRun(row), serving.batchedRun('other')])).toEqual([
        row,
        'other',
      ]);
    });

    it.each([
      ['tensors', floats([2, 1], [1, 2])],
      ['named maps', { x: floats([2], [1, 2]), y: floats([2, 2], [3, 4, 5, 6]) }],
      ['tuples and nestings', [floats([2], [1, 2]), { inner: [floats([2], [3, 4])] }]],
    ])('[1.7] Rows of %s cross to the worker and back in a batch', async (_, rows) => {
      const serving = await serve({ name: 'echo', model: { useFile: worker('echo'), isolation } });

      expect(await Promise.all([serving.batchedRun(rows), serving.run(rows)])).toEqual([
        rows,
        rows,
      ]);
    });

    it('[1.7] Plain rows that are tensors of different shapes return to their callers', async () => {
      const serving = await serve({ name: 'echo', model: { useFile: worker('echo'), isolation } });
      const rows = [
        floats([2], [1, 2]),
        { x: floats([1, 1], [3]) },
        'text',
        [floats([], [4]), floats([], [5])],
      ];

      expect(await serving.batchedRun(Batch.ofValues(rows))).toEqual(rows);
    });

    it.each<[string, new () => Error, object]>([
      [
        'throws',
        BatchFailedError,
        {
          message: 'Serving "faults": a batch of 2 rows failed: 9 is too long',
          cause: { code: 'TOO_LONG' },
        },
      ],
      [
        'rejects',
        BatchFailedError,
        {
          cause: {
            name: 'TooLongError',
            code: 'TOO_LONG',
            cause: { name: 'RangeError', message: '9 > 8' },
          },
        },
      ],
      ['throws a string', BatchFailedError, { cause: { message: 'no error at all' } }],
      [
        'returns too few',
        InvalidOutputError,
        {
          message:
            'Serving "faults": A batch of 2 rows needs 2 results; the batch function returned 1',
        },
      ],
      [
        'returns nothing',
        InvalidOutputError,
        { message: expect.stringContaining('returned undefined') },
      ],
      [
        'returns functions',
        BatchFailedError,
        { cause: { message: '() => 1 could not be cloned.' } },
      ],
    ])(
      '[6.1] [6.3] A batch that %s fails its callers, and the serving goes on',
      async (fault, type, expected) => {
        const serving = await serve({
          name: 'faults',
          model: { useFile: worker('faults'), isolation },
          batchSize: 2,
        });

        const replies = await Promise.allSettled(
          [fault, 'a', 'b', 'c'].map((row) => serving.batchedRun(row)),
        );

        for (const { reason } of replies.slice(0, 2) as PromiseRejectedResult[]) {
          expect(reason).toBeInstanceOf(type);
          expect(reason).toMatchObject(expected);
        }
        expect(replies.slice(2)).toEqual(
          ['b', 'c'].map((row) => ({ status: 'fulfilled', value: row })),
        );
      },
    );

    it('[FR15] A result that cannot be cloned fails its own row only', async () => {
      const serving = await serve({
        name: 'faults',
        model: { useFile: worker('faults'), isolation },
        batchSize: 3,
      });
      const rows = ['returns a function for the first row', 'a', 'b'];

      const replies = await Promise.allSettled(rows.map((row) => serving.batchedRun(row)));

      expect(replies).toEqual([
        { status: 'rejected', reason: expect.any(InvalidOutputError) },
        { status: 'fulfilled', value: 'a' },
        { status: 'fulfilled', value: 'b' },
      ]);
      expect(replies[0]).toMatchObject({
        reason: {
          message: 'The result of a row cannot be sent back: () => 1 could not be cloned.',
        },
      });
    });

    it('[6.2] [6.5] An error in place of a row keeps its class, code and cause', async () => {
      const serving = await serve({
        name: 'errors',
        model: { useFile: worker('errors'), isolation },
      });
      const rows = ['fine', 'an error of its own', 'an error of the package'];

      const [fine, own, ours] = await Promise.allSettled(
        rows.map((row) => serving.batchedRun(row)),
      );

      expect(fine).toEqual({ status: 'fulfilled', value: 'fine' });
      const expected = {
        name: 'TooLongError',
        code: 'TOO_LONG',
        message: '9 is too long',
        cause: { name: 'RangeError', message: '9 > 8' },
      };
      expect((own as PromiseRejectedResult).reason).toMatchObject({
        ...expected,
        stack: expect.stringContaining('errors.mjs'),
      });
      expect((ours as PromiseRejectedResult).reason).toBeInstanceOf(InvalidInputError);
      expect((ours as PromiseRejectedResult).reason).toMatchObject({
        code: 'SERVING_INVALID_INPUT',
        statusCode: 400,
      });
    });

    it.each([2, 3, 4, 5])(
      '[6.1] A row with a value that cannot be sent when it is read for the %dth time spoils no row of others',
      async (fatal) => {
        const serving = await serve({
          name: 'echo',
          model: { useFile: worker('echo'), isolation },
          batchSize: 3,
        });
        const shifty = (at: () => unknown) => {
          let reads = 0;
          return {
            get value() {
              return ++reads === fatal ? at() : 'read';
            },
          };
        };
        const throwing = shifty(() => {
          throw new Error('not now');
        });
        const uncloneable = shifty(() => () => 1);

        const replies = await Promise.allSettled(
          ['a', throwing, uncloneable].map((row) => serving.batchedRun(row)),
        );

        expect(replies[0]).toEqual({ status: 'fulfilled', value: 'a' });
        for (const reply of replies.slice(1)) {
          expect(reply).toMatchObject(
            reply.status === 'fulfilled'
              ? { value: { value: 'read' } }
              : { reason: { code: 'SERVING_INVALID_INPUT' } },
          );
        }
      },
    );

    it.each<[string, unknown]>([
      ['a function', () => 1],
      ['an object with a method', { method() {} }],
      ['a promise', { later: Promise.resolve() }],
      ['a symbol', Symbol('row')],
    ])(
      '[6.1] A row that cannot be sent to a worker fails clearly, and the serving goes on: %s',
      async (_, row) => {
        const serving = await serve({
          name: 'echo',
          model: { useFile: worker('echo'), isolation },
          batchSize: 1,
        });

        const [refused, served] = await Promise.allSettled(
          [row, 'fine'].map((each) => serving.batchedRun(each)),
        );

        expect((refused as PromiseRejectedResult).reason).toMatchObject({
          code: 'SERVING_INVALID_INPUT',
          message: expect.stringMatching(
            /could not be cloned|gets only what structuredClone copies/,
          ),
        });
        expect(served).toEqual({ status: 'fulfilled', value: 'fine' });
      },
    );

    it.each<[string, string | URL, new () => Error, string]>([
      [
        'is missing',
        worker('missing'),
        InvalidServingError,
        `there is no file ${fileURLToPath(worker('missing'))}`,
      ],
      [
        'has no default function',
        worker('no-default'),
        InvalidServingError,
        'must have a default export: a function that returns the batch function; it has undefined',
      ],
      [
        'returns no batch function',
        worker('no-function'),
        InvalidServingError,
        'The factory must return a function that runs a batch; for partition 0 and key "default" it returned undefined',
      ],
      [
        'throws while it loads, and leaves a timer',
        worker('load-fails'),
        ServingLoadError,
        'no weights here',
      ],
      [
        'is no script',
        new URL('../../../package.json', import.meta.url),
        ServingLoadError,
        'package.json',
      ],
      [
        'ends its worker while it loads',
        worker('exits-at-load'),
        ServingLoadError,
        'ended with code 5',
      ],
    ])(
      '[9.1] A module fails to start with the reason when it %s',
      async (_, useFile, type, message) => {
        const starting = serve({ name: 'module', model: { useFile, isolation }, partitions: 2 });

        await expect(starting).rejects.toThrow(type);
        await expect(starting).rejects.toThrow('Serving "module"');
        await expect(starting).rejects.toThrow(message);
      },
    );
  },
);

describe('A serving of a module file', () => {
  const serve = useServings();

  it('[9.1] Threads that did start are ended when the setup of one fails', async () => {
    const [started, living] = [
      new Int32Array(new SharedArrayBuffer(4)),
      new Int32Array(new SharedArrayBuffer(4)),
    ];
    const partitions = [false, true, false].map((fails) => ({ started, living, fails }));

    await expect(
      serve({ name: 'module', model: { useFile: worker('counted') }, partitions }),
    ).rejects.toThrow('Serving "module" could not start: no device here');

    expect([started[0], living[0]]).toEqual([2, 0]);
  });
});
