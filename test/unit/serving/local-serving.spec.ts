import { describe, expect, it, jest } from '@jest/globals';
import {
  Batch,
  type BatchEndEvent,
  BatchFailedError,
  createServing,
  defineServing,
  InvalidBatchError,
  UnknownKeyError,
  InvalidOutputError,
  OverloadedError,
  type ServingDefinition,
  ServingClosedError,
  withMetadata,
  Tensor,
} from 'nestjs-serving';
import { BatchScript } from 'nestjs-serving/testing';
import { floats } from '../../fixtures/values/tensors.js';
import { useServings } from '../../fixtures/serving/use-servings.js';
import { later, passTime, turn, useVirtualTime } from '../../fixtures/async/virtual-time.js';
import { recordWarnings } from '../../fixtures/recorded-warnings.js';

/** Returns each text in capitals and records the batches. */
function upper(options: Partial<ServingDefinition> = {}): {
  definition: ServingDefinition;
  batches: string[][];
} {
  const batches: string[][] = [];
  const useFactory = () => (rows: string[]) => {
    batches.push(rows);
    return rows.map((row) => row.toUpperCase());
  };
  return { batches, definition: { name: 'upper', model: { useFactory }, ...options } };
}

const embed = (text: string): Tensor => floats([text.length], text.split('').map(Number));
const failOnBad = (text: string): string => {
  if (text.toLowerCase() === 'bad') {
    throw new RangeError('too bad');
  }
  return text;
};

describe('LocalServing', () => {
  useVirtualTime();
  const start = useServings();

  describe('batchedRun', () => {
    it('[3.2] Rows of concurrent callers run in one batch, and each caller gets its own', async () => {
      const { definition, batches } = upper();
      const serving = await start(definition);

      const replies = await Promise.all(['a', 'b', 'c'].map((text) => serving.batchedRun(text)));

      expect(replies).toEqual(['A', 'B', 'C']);
      expect(batches).toEqual([['a', 'b', 'c']]);
    });

    it('[3.2] [4.5] A call with any number of rows is answered with as many', async () => {
      const { definition, batches } = upper({ batchSize: 2 });
      const serving = await start(definition);

      const replies = await Promise.all([
        serving.batchedRun('a'),
        serving.batchedRun(Batch.stack(['b', 'c', 'd'])),
      ]);

      expect(replies).toEqual(['A', ['B', 'C', 'D']]);
      expect(batches).toEqual([
        ['a', 'b'],
        ['c', 'd'],
      ]);
    });

    it('[1.7] [4.5] Tensors that ran in several batches are joined in order, in whatever order those finish', async () => {
      const script = new BatchScript<{ x: Tensor }>();
      const serving = await start(
        script.createServing({ name: 'held', batchSize: 2, partitions: 3 }),
      );

      const reply = serving.batchedRun({ x: floats([5, 1], [1, 2, 3, 4, 5]) });
      await turn();
      for (const batch of script.batches.toReversed()) {
        const { x } = batch.rows;
        batch.finish([
          x,
          floats(
            [x.dims[0]!],
            [...(x.data as Float32Array)].map((value) => -value),
          ),
        ]);
        await turn();
      }

      expect(await reply).toEqual([
        floats([5, 1], [1, 2, 3, 4, 5]),
        floats([5], [-1, -2, -3, -4, -5]),
      ]);
    });

    it('[1.7] Plain rows are answered with a tensor each when the function returns a list of tensors', async () => {
      const serving = await start({
        name: 'embedder',
        model: { useFactory: () => (texts: string[]) => texts.map(embed) },
      });

      const replies = await Promise.all(['12', '345'].map((text) => serving.batchedRun(text)));

      expect(replies).toEqual([floats([2], [1, 2]), floats([3], [3, 4, 5])]);
    });

    it('[4.7] Each key runs in batches of its own, and an unknown key is refused with the sorted list', async () => {
      const { definition, batches } = upper({ batchKeys: ['en', 'de'] });
      const serving = await start(definition);
      const call = (text: string, key: string): Promise<unknown> =>
        serving.batchedRun(Batch.stack([text]).withKey(key));

      const unknown = expect(call('x', 'fr')).rejects.toThrow(
        new UnknownKeyError('Serving "upper" has no key "fr"; its keys are de, en'),
      );
      await Promise.all([call('a', 'en'), call('b', 'de'), call('c', 'en'), unknown]);

      expect(batches).toEqual([['a', 'c'], ['b']]);
    });

    it('[4.9] Rows with different shapes or types never share a batch', async () => {
      const shapes: string[] = [];
      const serving = await start<Tensor>({
        name: 'echo',
        model: {
          useFactory: () => (x: Tensor) => (shapes.push(`${x.type} ${x.dims.join('x')}`), x),
        },
      });
      const inputs = [
        floats([1, 2], [1, 2]),
        floats([1, 3], [1, 2, 3]),
        floats([2, 2], [3, 4, 5, 6]),
        new Tensor('int32', [1, 2], [1, 2]),
      ];

      expect(await Promise.all(inputs.map((input) => serving.batchedRun(input)))).toEqual(inputs);
      expect(shapes).toEqual(['float32 3x2', 'float32 1x3', 'int32 1x2']);
    });

    it('[2.3] A call without rows is refused', async () => {
      const serving = await start(upper().definition);

      await expect(serving.batchedRun(Batch.empty())).rejects.toThrow(InvalidBatchError);
    });

    it('[7.1] A call beyond the queue limit is refused at once', async () => {
      const { definition, batches } = upper({ batchSize: 2, queue: { maxRows: 2 } });
      const serving = await start(definition);

      const calls = ['a', 'b', 'c', 'd', 'e'].map((text) => serving.batchedRun(text));
      await expect(calls[4]).rejects.toThrow(OverloadedError);

      expect(await Promise.all(calls.slice(0, 4))).toEqual(['A', 'B', 'C', 'D']);
      expect(batches).toEqual([
        ['a', 'b'],
        ['c', 'd'],
      ]);
    });
  });

  describe('run', () => {
    it('[3.1] An inline run shares no batch, waits for no window and needs no start', async () => {
      const script = new BatchScript<string>();
      const serving = await start(script.createServing({ name: 'held', batchTimeout: 10_000 }));
      const queued = serving.batchedRun('queued');

      const replies = ['a', 'b'].map((text) => serving.run(text));
      await turn();
      expect(script.batches.map(({ rows }) => rows)).toEqual([['a']]);
      (await script.next()).finish(['A']);
      (await script.next()).finish(['B']);
      expect(await Promise.all(replies)).toEqual(['A', 'B']);

      await later(10_000);
      (await script.next()).finish(['Q']);
      expect(await queued).toBe('Q');
      expect(await createServing(upper().definition).run('a')).toBe('A');
    });

    it.each([
      {
        promise: 'in chunks of the batch size',
        options: { batchSize: 2 },
        chunks: [['a', 'b'], ['c', 'd'], ['e']],
      },
      {
        promise: 'whole without a batch size',
        options: {},
        chunks: [['a', 'b', 'c', 'd', 'e']],
      },
    ])('[3.1] An inline run executes a large input $promise', async ({ options, chunks }) => {
      const { definition, batches } = upper(options);

      const reply = await createServing(definition).run(Batch.stack('abcde'.split('')));

      expect(reply).toEqual(['A', 'B', 'C', 'D', 'E']);
      expect(batches).toEqual(chunks);
    });

    it('[3.1] An inline run fails alone when its batch function throws', async () => {
      const serving = createServing({
        name: 'failing',
        model: { useFactory: () => () => Promise.reject(new Error('out of memory')) },
      });

      await expect(serving.run('a')).rejects.toThrow(BatchFailedError);
    });
  });

  describe('preprocess and postprocess', () => {
    it('[1.5] preprocess and postprocess run once per call, also when the call is split over batches', async () => {
      const journal: unknown[] = [];
      const letters = defineServing({
        name: 'letters',
        batchSize: 2,
        preprocess: (text: string) => ({
          batch: Batch.stack(text.split('')),
          info: journal.push(text),
        }),
        model: { useFactory: () => (rows: string[]) => rows.map((row) => row.toUpperCase()) },
        postprocess: (output: string[], { info }) => [info, journal.push(output)],
      });
      const serving = await start(letters);

      expect(await serving.batchedRun('abcde')).toEqual([1, 2]);
      expect(journal).toEqual(['abcde', ['A', 'B', 'C', 'D', 'E']]);
    });

    it.each(['preprocess', 'postprocess'])(
      '[1.5] An error in %s fails one call alone',
      async (callback) => {
        const { definition, batches } = upper(
          callback === 'preprocess'
            ? { preprocess: (text) => ({ batch: failOnBad(text as string) }) }
            : { postprocess: (text) => failOnBad(text as string) },
        );
        const serving = await start(definition);

        const replies = await Promise.allSettled(
          ['a', 'bad', 'b'].map((text) => serving.batchedRun(text)),
        );

        expect(replies).toEqual([
          { status: 'fulfilled', value: 'A' },
          { status: 'rejected', reason: new RangeError('too bad') },
          { status: 'fulfilled', value: 'B' },
        ]);
        expect(batches).toEqual([callback === 'preprocess' ? ['a', 'b'] : ['a', 'bad', 'b']]);
      },
    );

    it('[1.6] postprocess receives the metadata of the batch that the call shared with others', async () => {
      let batches = 0;
      const serving = await start({
        name: 'counting',
        batchSize: 2,
        model: { useFactory: () => (rows: string[]) => withMetadata(rows, { batch: batches++ }) },
        postprocess: (_, { metadata }) => metadata,
      });

      const replies = await Promise.all(['a', 'b', 'c'].map((text) => serving.batchedRun(text)));

      expect(replies).toEqual([{ batch: 0 }, { batch: 0 }, { batch: 1 }]);
      expect(await serving.run('e')).toEqual({ batch: 2 });
    });
  });

  describe('failures', () => {
    it('[6.1] A failed batch fails the calls with rows in it, and the serving goes on', async () => {
      const script = new BatchScript<string>();
      const serving = await start(script.createServing({ name: 'held', batchSize: 2 }));
      const cause = new Error('out of memory');

      const replies = Promise.allSettled(
        ['a', 'bc', 'd'].map((text) => serving.batchedRun(Batch.stack(text.split('')))),
      );
      await turn();
      (await script.next()).fail(cause);
      await turn();
      // Row c belongs to a call that has failed, so it does not run.
      expect(script.batches.map(({ rows }) => rows)).toEqual([['d']]);
      (await script.next()).finish(['D']);

      const reason = new BatchFailedError(
        'Serving "held": a batch of 2 rows failed: out of memory',
        { cause },
      );
      expect(await replies).toEqual([
        { status: 'rejected', reason },
        { status: 'rejected', reason },
        { status: 'fulfilled', value: ['D'] },
      ]);
    });

    it('[6.2] An error in place of a row fails the call of that row alone', async () => {
      const fault = new RangeError('b is no number');
      const serving = await start({
        name: 'numbers',
        model: {
          useFactory: () => (rows: string[]) =>
            rows.map((row) => (Number.isNaN(Number(row)) ? fault : Number(row))),
        },
      });

      const replies = await Promise.allSettled(
        ['1', 'b', ['2', 'b'], ['3', '4']].map((row) =>
          serving.batchedRun(Batch.stack([row].flat())),
        ),
      );

      expect(replies).toEqual([
        { status: 'fulfilled', value: [1] },
        { status: 'rejected', reason: fault },
        { status: 'rejected', reason: fault },
        { status: 'fulfilled', value: [3, 4] },
      ]);
    });

    it('[6.3] [N4] An invalid output fails the calls of its batch with the name of the serving and the expected output', async () => {
      const outputs = [['A'], undefined, ['E', 'F']].values();
      const serving = await start({
        name: 'short',
        batchSize: 2,
        model: { useFactory: () => () => outputs.next().value },
      });

      const replies = await Promise.allSettled(
        'abcdef'.split('').map((row) => serving.batchedRun(row)),
      );

      const [short, none] = [
        new InvalidOutputError(
          'Serving "short": A batch of 2 rows needs 2 results; the batch function returned 1',
        ),
        new InvalidOutputError(
          'Serving "short": A batch of 2 rows needs a list of 2 results, or tensors with 2 rows; the batch function returned undefined',
        ),
      ];
      expect(replies.slice(0, 4).map((reply) => 'reason' in reply && reply.reason)).toEqual([
        short,
        short,
        none,
        none,
      ]);
      expect(replies.slice(4).map((reply) => 'value' in reply && reply.value)).toEqual(['E', 'F']);
    });

    it('[6.5] A ServingError from a batch function reaches the caller unchanged', async () => {
      const overloaded = new OverloadedError('the next serving is full');
      const serving = await start({
        name: 'chained',
        model: { useFactory: () => () => Promise.reject(overloaded) },
      });

      await expect(serving.batchedRun('a')).rejects.toBe(overloaded);
    });
  });

  describe('lifecycle', () => {
    it('[9.1] A batched call before the start is refused', async () => {
      const serving = createServing(upper().definition);

      await expect(serving.batchedRun('a')).rejects.toThrow(
        new ServingClosedError(
          'Serving "upper" has not been started; the application starts it before it listens, in a test call app.init(), elsewhere start()',
        ),
      );
    });

    it('[9.1] A serving starts once', async () => {
      const useFactory = jest.fn(() => (rows: string[]) => rows);
      const serving = createServing({ name: 'once', model: { useFactory } });

      await Promise.all([serving.start(), serving.start()]);
      await serving.start();

      expect(useFactory).toHaveBeenCalledTimes(1);
      await serving.close();
    });

    it.each([
      {
        promise: 'runs queued rows',
        options: {},
        queued: { status: 'fulfilled', value: 'B' },
      },
      {
        promise: 'answers queued calls with the closed error when draining is off',
        options: { shutdown: { drain: false } },
        queued: {
          status: 'rejected',
          reason: new ServingClosedError('Serving "held" was closed before the call could run'),
        },
      },
    ])('[9.3] Closing waits for running batches and $promise', async ({ options, queued }) => {
      const script = new BatchScript<string>();
      const serving = await start(script.createServing({ name: 'held', ...options }));
      const ended = jest.fn();
      const replies = Promise.allSettled([
        serving.batchedRun('a'),
        turn().then(() => serving.batchedRun('b')),
      ]);
      await turn();
      await turn();

      void serving.close().then(ended);
      await later(29_999);
      expect(ended).not.toHaveBeenCalled();
      expect(script.batches.map(({ rows }) => rows)).toEqual([['a']]);
      (await script.next()).finish(['A']);
      await turn();
      script.batches[0]?.finish(['B']);
      await turn();

      expect(ended).toHaveBeenCalledTimes(1);
      expect(await replies).toEqual([{ status: 'fulfilled', value: 'A' }, queued]);
    });

    it('[9.3] [H1] At the shutdown limit queued and running calls are answered with the closed error', async () => {
      const warnings = recordWarnings();
      const script = new BatchScript<string>();
      const serving = await start(
        script.createServing({ name: 'held', shutdown: { timeout: 500 } }),
      );
      const running = expect(serving.batchedRun('a')).rejects.toThrow(ServingClosedError);
      await turn();
      const queued = expect(serving.batchedRun('b')).rejects.toThrow(ServingClosedError);

      const closing = serving.close();
      await later(500);
      await Promise.all([running, queued]);
      await passTime(closing);
      expect(warnings).toEqual([
        'Serving "held" did not finish within 500 ms of shutdown; the calls that were left are answered as closed',
        'Serving "held" is closed, and cannot end what still runs: a batch of 1 row on partition 0',
      ]);

      (await script.next()).finish(['A']);
      jest.restoreAllMocks();
    });

    it.each(['batchedRun', 'run'] as const)(
      '[9.3] %s calls are refused from the moment in which the serving closes',
      async (method) => {
        const serving = await start(upper().definition);

        const closing = serving.close();

        await expect(serving[method]('a')).rejects.toThrow(
          new ServingClosedError('Serving "upper" is closed and takes no more calls'),
        );
        await closing;
        await expect(serving[method]('a')).rejects.toThrow(ServingClosedError);
      },
    );

    it('[9.3] A serving closes once, and a start after that is refused', async () => {
      const serving = createServing(upper().definition);

      const closing = serving.close();
      expect(serving.close()).toBe(closing);
      await closing;

      await expect(serving.start()).rejects.toThrow(ServingClosedError);
    });
  });

  describe('eventsOf', () => {
    it('[12.2] eventsOf emits an event with the figures of each batch', async () => {
      const script = new BatchScript<string>();
      const serving = await start(
        script.createServing({
          name: 'held',
          batchKeys: ['en', 'de'],
          batchSize: 4,
          batchTimeout: 10,
          partitions: 2,
        }),
      );
      const events: BatchEndEvent[] = [];
      const ended = jest.fn();
      serving
        .eventsOf('batch:end')
        .subscribe({ next: (event) => events.push(event), complete: ended });
      const replies = Promise.allSettled([
        serving.batchedRun(Batch.stack(['a', 'b', 'c', 'd']).withKey('de')),
        serving.batchedRun(Batch.stack(['e']).withKey('en')),
      ]);
      await later(15);
      (await script.next()).finish(['A', 'B', 'C', 'D']);
      await later(5);
      const fault = new Error('out of memory');
      (await script.next()).fail(fault);
      await replies;
      await turn();

      const common = {
        type: 'batch:end',
        serving: 'held',
        version: '1',
        batchSize: 4,
        padding: 0,
        calls: [],
      };
      expect(events).toEqual([
        {
          ...common,
          batch: 1,
          key: 'de',
          partition: 0,
          rows: 4,
          fill: 1,
          reason: 'full',
          wait: 0,
          queued: 1,
          runTime: 15,
        },
        {
          ...common,
          batch: 2,
          queued: 0,
          key: 'en',
          partition: 1,
          rows: 1,
          fill: 0.25,
          reason: 'timeout',
          wait: 10,
          runTime: 10,
          error: expect.objectContaining({ code: 'SERVING_BATCH_FAILED', cause: fault }),
        },
      ]);
      await serving.close();
      expect(ended).toHaveBeenCalledTimes(1);
    });
  });
});
