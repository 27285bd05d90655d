import { Readable } from 'node:stream';
import { describe, expect, it } from '@jest/globals';
import {
  Batch,
  BatchFailedError,
  defineServing,
  InvalidBatchError,
  type LocalServing,
  UnknownKeyError,
} from 'nestjs-serving';
import { concat, from, of, Subject, throwError } from 'rxjs';
import { HeldFunction } from '../../fixtures/batching/held-function.js';
import { echoModel, value } from '../../fixtures/models/models.js';
import { iterated, outputsOf, until } from '../../fixtures/async/streams.js';
import { floats } from '../../fixtures/values/tensors.js';
import { useServings } from '../../fixtures/serving/use-servings.js';
import { turn } from '../../fixtures/async/virtual-time.js';
import { worker } from '../../fixtures/partitions/worker.js';

const batches = (...rows: string[][]): Batch[] => rows.map((row) => Batch.stack(row));

/** A source that records how often it was pulled and whether it was closed. */
function endless(notes: { asked: number; left: boolean }, limit = Infinity) {
  return (async function* () {
    try {
      for (; notes.asked < limit; notes.asked++) {
        yield Batch.stack([`row ${notes.asked}`]);
      }
    } finally {
      notes.left = true;
    }
  })();
}

const upper = () => (rows: string[]) => rows.map((row) => row.toUpperCase());

const picky = () => (rows: string[]) => {
  if (rows.includes('bad')) {
    throw new RangeError('bad');
  }
  return rows;
};

/** Yields one batch and then hangs. */
async function* stuck(): AsyncGenerator<Batch> {
  yield Batch.stack(['a']);
  await new Promise(() => {});
}

describe('A sequence of batches', () => {
  const serve = useServings();
  const sources: [string, (given: Batch[]) => unknown][] = [
    ['an array', (given) => given],
    ['an iterator', (given) => given.values()],
    [
      'a generator',
      function* (given) {
        yield* given;
      },
    ],
    [
      'an async generator',
      async function* (given) {
        yield* given;
      },
    ],
    [
      'an async iterable',
      (given) => ({
        async *[Symbol.asyncIterator]() {
          yield* given;
        },
      }),
    ],
    ['a generator of promises', (given) => given.map((batch) => Promise.resolve(batch)).values()],
    ['an Observable', (given) => from(given)],
    [
      'an Observable that is late',
      (given) =>
        from(
          (async function* () {
            yield* given;
          })(),
        ),
    ],
  ];

  describe.each(sources)('as %s', (_, sourceOf) => {
    it.each([
      ['batchedRun', (serving: LocalServing, input: unknown) => serving.batchedRun(input)],
      ['run', (serving: LocalServing, input: unknown) => serving.run(input)],
    ])('[8.1] A sequence is answered by %s as one call, in order', async (__, call) => {
      const serving = await serve({
        name: 'upper',
        model: { useFactory: upper },
        batchSize: 2,
        partitions: 2,
      });

      expect(await call(serving, sourceOf(batches(['a'], ['b', 'c', 'd'], ['e'])))).toEqual([
        'A',
        'B',
        'C',
        'D',
        'E',
      ]);
    });

    it('[8.5] A sequence is answered by a stream as it arrives, with the offsets of its rows', async () => {
      const serving = await serve({ name: 'upper', model: { useFactory: upper }, batchSize: 4 });

      const events = await iterated(
        serving.stream(sourceOf(batches(['a'], ['b', 'c'], ['d', 'e', 'f']))),
      );

      expect(outputsOf(events).flat()).toEqual(['A', 'B', 'C', 'D', 'E', 'F']);
      let offset = 0;
      for (const { batch, output } of events) {
        expect(batch).toEqual({ offset, rows: (output as string[]).length });
        offset += batch.rows;
      }
    });
  });

  it.each<[string, object]>([
    ['a function', { model: { useFactory: () => (rows: unknown[]) => rows } }],
    [
      'a class',
      {
        model: {
          useClass: class {
            init(): void {}
            handleBatch(batch: Batch) {
              return { output: batch.consume() };
            }
          },
        },
      },
    ],
    ['a module file', { model: { useFile: worker('echo') } }],
  ])('[8.1] A sequence that preprocess makes as it goes runs in %s', async (_, how) => {
    const serving = await serve(
      defineServing({
        name: 'words',
        batchSize: 2,
        ...(how as { model: { useFactory: () => (rows: unknown[]) => unknown } }),
        preprocess: (text: string) => ({
          info: text.length,
          batch: (function* () {
            for (const word of text.split(' ')) {
              yield Batch.stack([word]);
            }
          })(),
        }),
        postprocess: (words: string[], { info }) => `${words.join('+')} of ${info}`,
      }),
    );

    expect(await serving.batchedRun('to be or not')).toBe('to+be+or+not of 12');
    expect(
      outputsOf(await iterated(serving.stream('to be or not')))
        .join(' ')
        .replace(/ of 12/g, '')
        .split(/[+ ]/),
    ).toEqual(['to', 'be', 'or', 'not']);
  });

  it('[8.1] A sequence of tensors or plain containers runs in a model', async () => {
    const serving = await serve({
      name: 'echo',
      model: echoModel({ x: value('float32', 'batch', 2) }),
      batchSize: 2,
    });
    const pieces = [
      floats([1, 2], [1, 2]),
      Batch.concatenate([floats([2, 2], [3, 4, 5, 6])]),
      { x: floats([1, 2], [7, 8]) },
    ];

    expect(await serving.batchedRun(pieces.values())).toEqual({
      same_x: floats([4, 2], [1, 2, 3, 4, 5, 6, 7, 8]),
    });
    const events = await iterated(serving.stream(pieces.values()));
    expect(
      events.flatMap(({ output }) => [
        ...(output as { same_x: { data: Float32Array } }).same_x.data,
      ]),
    ).toEqual([1, 2, 3, 4, 5, 6, 7, 8]);
  });

  it('[8.1] A sequence with one plain value is answered with a list', async () => {
    const serving = await serve({ name: 'upper', model: { useFactory: upper } });

    expect(await serving.batchedRun(['a'].values())).toEqual(['A']);
    expect(outputsOf(await iterated(serving.stream(['a'].values())))).toEqual([['A']]);
  });

  it('[8.1] Several pieces of a sequence run at a time, in batches with the rows of others', async () => {
    const held = new HeldFunction();
    const serving = await serve({
      name: 'held',
      model: { useFactory: held.useFactory },
      batchSize: 4,
      batchTimeout: 1,
    });

    const replies = [serving.batchedRun(batches(['a'], ['b'], ['c'])), serving.batchedRun('x')];
    await until(() => held.batches.length > 0);
    expect(held.rows.map((rows) => rows.toSorted())).toEqual([['a', 'b', 'c', 'x']]);
    const { rows, finish } = held.next();
    finish(rows);

    expect(await Promise.all(replies)).toEqual([['a', 'b', 'c'], 'x']);
  });

  it.each([1, 2])(
    '[8.1] A sequence is pulled two batches per partition ahead, on %i partitions, and no further',
    async (partitions) => {
      const held = new HeldFunction();
      const notes = { asked: 0, left: false };
      const serving = await serve({
        name: 'held',
        model: { useFactory: held.useFactory },
        batchSize: 3,
        partitions,
      });
      const events = serving.stream(endless(notes))[Symbol.asyncIterator]();

      const first = events.next();
      await turn();
      expect(notes.asked).toBe(6 * partitions - 1);
      held.batches.splice(0).forEach(({ rows, finish }) => finish(rows));
      await first;
      await turn();

      expect(notes.asked).toBe(6 * partitions - 1);
      const second = events.next();
      await turn();
      expect(notes.asked).toBe(6 * partitions);
      held.batches.splice(0).forEach(({ rows, finish }) => finish(rows));
      await second;
      await events.return!();
    },
  );

  it('[8.1] A sequence need not fit into the queue', async () => {
    const notes = { asked: 0, left: false };
    const serving = await serve<string[]>({
      name: 'upper',
      model: { useFactory: upper },
      batchSize: 2,
      queue: { maxRows: 8 },
    });

    expect(await serving.batchedRun(endless(notes, 500))).toHaveLength(500);
  });

  describe('that fails', () => {
    const broken = new Error('the file is broken');
    const failing: [string, () => unknown][] = [
      [
        'in the middle',
        async function* () {
          yield* batches(['a'], ['b']);
          throw broken;
        },
      ],
      ['at the start', () => new Readable({ objectMode: true }).destroy(broken)],
      [
        'in a generator',
        function* () {
          yield* batches(['a'], ['b']);
          throw broken;
        },
      ],
      [
        'in an Observable',
        () =>
          concat(
            from(batches(['a'])),
            throwError(() => broken),
          ),
      ],
      ['in a promise', () => [Batch.stack(['a']), Promise.reject(broken)].values()],
      [
        'when it is opened',
        () => ({
          [Symbol.asyncIterator]() {
            throw broken;
          },
        }),
      ],
    ];

    it.each(failing)(
      '[8.1] A sequence that fails %s fails its own call with its error and no other',
      async (_, source) => {
        const serving = await serve({
          name: 'upper',
          model: { useFactory: upper },
          batchTimeout: 1,
        });

        const replies = [
          serving.batchedRun(source()),
          serving.run(source()),
          iterated(serving.stream(source())),
          serving.batchedRun('x'),
          serving.batchedRun(batches(['y'], ['z'])),
        ];

        expect(await Promise.allSettled(replies)).toEqual([
          ...[1, 2, 3].map(() => ({ status: 'rejected', reason: broken })),
          { status: 'fulfilled', value: 'X' },
          { status: 'fulfilled', value: ['Y', 'Z'] },
        ]);
      },
    );

    it('[8.1] A stream gets the outputs before the error of its sequence', async () => {
      const serving = await serve({ name: 'upper', model: { useFactory: upper } });
      const outputs: unknown[] = [];
      const read = async (): Promise<void> => {
        for await (const { output } of serving.stream(failing[0]![1]())) {
          outputs.push(...(output as string[]));
        }
      };

      await expect(read()).rejects.toBe(broken);

      expect(outputs).toEqual(['A', 'B']);
    });

    it.each<[string, unknown, unknown]>([
      ['a batch without rows', Batch.empty(), InvalidBatchError],
      ['a batch of an unknown key', Batch.stack(['b']).withKey('fr'), UnknownKeyError],
      ['a row that fails', 'bad', BatchFailedError],
    ])('[8.1] A sequence with %s fails its own call and is closed', async (_, second, error) => {
      let left = false;
      const source = function* () {
        try {
          yield Batch.stack(['a']);
          yield second;
          yield* batches(['c'], ['d'], ['e'], ['f'], ['g'], ['h']);
        } finally {
          left = true;
        }
      };
      const serving = await serve({ name: 'picky', model: { useFactory: picky }, batchSize: 1 });

      await expect(serving.batchedRun(source())).rejects.toThrow(error);
      expect(left).toBe(true);
      await expect(iterated(serving.stream(source()))).rejects.toThrow(error);
      expect(await serving.batchedRun('x')).toBe('x');
    });

    it('[8.1] An empty sequence fails a call and ends a stream', async () => {
      const serving = await serve({ name: 'upper', model: { useFactory: upper } });

      await expect(serving.batchedRun(of())).rejects.toThrow(InvalidBatchError);
      await expect(serving.run([].values())).rejects.toThrow(
        'was given a sequence without batches',
      );
      expect(await iterated(serving.stream(of()))).toEqual([]);
    });
  });

  describe('that never ends', () => {
    it('[8.1] [8.2] An endless sequence is closed when its consumer leaves, and none of it runs after that', async () => {
      const notes = { asked: 0, left: false };
      const rows: string[] = [];
      const useFactory = () => (texts: string[]) => (rows.push(...texts), texts);
      const serving = await serve({ name: 'counted', model: { useFactory }, batchSize: 2 });

      for await (const { batch } of serving.stream(endless(notes))) {
        if (batch.offset > 20) {
          break;
        }
      }
      const { asked } = notes;
      const ran = rows.length;
      await turn();

      expect(notes).toEqual({ asked, left: true });
      expect(rows).toHaveLength(ran);
      expect(await serving.batchedRun('next')).toBe('next');
    });

    it('[8.1] An endless sequence is closed when the signal of its call aborts', async () => {
      const notes = { asked: 0, left: false };
      const serving = await serve({ name: 'upper', model: { useFactory: upper }, batchSize: 2 });
      const controller = new AbortController();
      const reason = new Error('the caller has hung up');

      const reply = serving.batchedRun(endless(notes), { signal: controller.signal });
      await until(() => notes.asked > 20);
      controller.abort(reason);

      await expect(reply).rejects.toBe(reason);
      await turn();
      expect(notes.left).toBe(true);
    });

    it.each([
      ['by itself', false],
      ['by its signal', true],
    ])('[8.1] [8.2] A consumer can leave %s while the sequence is awaited', async (_, bySignal) => {
      const subject = new Subject<Batch>();
      const serving = await serve({ name: 'upper', model: { useFactory: upper } });
      for (const source of [stuck(), subject]) {
        const controller = new AbortController();
        const reason = new Error('left');
        const sequence = serving.stream(source, { signal: controller.signal });
        const events = sequence[Symbol.asyncIterator]();
        const first = events.next();
        subject.next(Batch.stack(['a']));
        expect(outputsOf([(await first).value!])).toEqual([['A']]);
        const second = events.next();
        await turn();
        if (bySignal) {
          controller.abort(reason);
          await expect(second).rejects.toBe(reason);
        } else {
          await events.return!();
          expect(await second).toEqual({ done: true, value: undefined });
        }
      }
      expect(subject.observed).toBe(false);
    });
  });

  it.each<[string, (() => AsyncIterable<unknown>) | undefined]>([
    [
      'reads none of it',
      async function* () {
        yield 'nothing read';
      },
    ],
    ['returns nothing', undefined],
  ])('[8.1] [8.2] A sequence is closed when postprocessStream %s', async (_, shape) => {
    const subject = new Subject<Batch>();
    const serving = await serve({
      name: 'upper',
      model: { useFactory: upper },
      postprocessStream: () => shape?.() as AsyncIterable<unknown>,
    });

    await iterated(serving.stream(subject)).catch(() => {});

    expect(subject.observed).toBe(false);
  });
});
