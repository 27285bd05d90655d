import { describe, expect, it, jest } from '@jest/globals';
import {
  Batch,
  createServing,
  InvalidBatchError,
  type ServingDefinition,
  ServingStream,
  withMetadata,
  type Tensor,
} from 'nestjs-serving';
import { recordBatches } from 'nestjs-serving/testing';
import { lastValueFrom, toArray } from 'rxjs';
import { collect } from '../../fixtures/async/collect.js';
import { doubled, doublingClass, goOn, numbers } from '../../fixtures/batching/doubling.js';
import { HeldFunction } from '../../fixtures/batching/held-function.js';
import { floats } from '../../fixtures/values/tensors.js';
import { useServings } from '../../fixtures/serving/use-servings.js';
import { later, turn, useVirtualTime } from '../../fixtures/async/virtual-time.js';
import { worker } from '../../fixtures/partitions/worker.js';

/** The event of rows from `offset` on, with these numbers as their output. */
const event = (offset: number, ...output: number[]) => ({
  batch: { offset, rows: output.length },
  output: floats([output.length], output),
  metadata: 'doubled',
});

describe('Output streams, like Nx.Serving', () => {
  useVirtualTime();
  const serve = useServings();

  describe.each<[string, Partial<ServingDefinition>]>([
    [
      'a function',
      { model: { useFactory: () => (rows: never) => withMetadata(doubled(rows), 'doubled') } },
    ],
    ['a class', { model: { useClass: doublingClass().Doubling } }],
    ['a file', { model: { useFile: worker('doubling') } }],
  ])('%s', (_, how) => {
    const definition = (options: Partial<ServingDefinition>) =>
      ({ name: 'streams', ...how, ...options }) as ServingDefinition;

    it.each([true, false])(
      '[8.2] One batch is one event with its output and metadata (inline: %j)',
      async (inline) => {
        const serving = await serve(definition({}));

        expect(
          await collect(serving.stream(Batch.stack([floats([3], [1, 2, 3])]), { inline })),
        ).toEqual([
          { batch: { offset: 0, rows: 1 }, output: floats([1, 3], [2, 4, 6]), metadata: 'doubled' },
        ]);
      },
    );

    it.each([true, false])(
      '[2.4] [8.2] Events have no results of padding (inline: %j)',
      async (inline) => {
        const serving = await serve(definition({ batchSize: [4] }));

        expect(await collect(serving.stream(numbers(1, 2), { inline }))).toEqual([event(0, 2, 4)]);
      },
    );

    it.each([true, false])(
      '[4.5] [8.2] A split call has an event per batch, in the order of its rows (inline: %j)',
      async (inline) => {
        const serving = await serve(definition({ batchSize: 3 }));

        expect(await collect(serving.stream(numbers(1, 2, 3, 4, 5, 6), { inline }))).toEqual([
          event(0, 2, 4, 6),
          event(3, 8, 10, 12),
        ]);
        expect(await collect(serving.stream(numbers(1, 2, 3, 4, 5), { inline }))).toEqual([
          event(0, 2, 4, 6),
          event(3, 8, 10),
        ]);
      },
    );

    it('[3.2] [8.2] Two calls with 2 rows share a batch of 4, and each gets the event of its own rows', async () => {
      const serving = await serve(definition({ batchSize: 4, batchTimeout: 10_000 }));
      const batches = recordBatches(serving);

      const events = await Promise.all(
        [numbers(1, 2), numbers(3, 4)].map((rows) => collect(serving.stream(rows))),
      );
      await turn();

      expect(events).toEqual([[event(0, 2, 4)], [event(0, 6, 8)]]);
      expect(batches.map(({ rows }) => rows)).toEqual([4]);
    });

    it('[4.5] [8.2] Of two calls with 3 rows in batches of 4, the second gets an event of 1 row and one of 2', async () => {
      const serving = await serve(definition({ batchSize: 4, batchTimeout: 100 }));
      const batches = recordBatches(serving);
      const events = Promise.all(
        [numbers(1, 2, 3), numbers(4, 5, 6)].map((rows) => collect(serving.stream(rows))),
      );
      await later(100);

      expect(await events).toEqual([[event(0, 2, 4, 6)], [event(0, 8), event(1, 10, 12)]]);
      await turn();
      expect(batches.map(({ rows, padding }) => [rows, padding])).toEqual([
        [4, 0],
        [2, 0],
      ]);
    });
  });

  it('[1.5] [8.2] postprocess shapes the output of every event, with its metadata and the info of the call', async () => {
    const serving = await serve({
      name: 'post',
      batchSize: 2,
      model: { useClass: doublingClass().Doubling },
      preprocess: (values) => ({ batch: numbers(...(values as number[])), info: 'info' }),
      postprocess: (output, { metadata, info }) => [(output as Tensor).data.length, metadata, info],
    });

    expect(await collect(serving.stream([1, 2, 3]))).toMatchObject([
      { batch: { offset: 0, rows: 2 }, output: [2, 'doubled', 'info'] },
      { batch: { offset: 2, rows: 1 }, output: [1, 'doubled', 'info'] },
    ]);
  });

  it('[1.5] [8.2] postprocessStream receives the whole stream with the info before any batch has run', async () => {
    const seen: unknown[] = [];
    const serving = await serve({
      name: 'post',
      batchSize: 2,
      model: { useFactory: () => (rows: never) => (seen.push('batch'), doubled(rows)) },
      preprocess: (values) => ({ batch: numbers(...(values as number[])), info: 'info' }),
      postprocessStream: (events, { info }) => {
        seen.push(info);
        return (async function* () {
          let sum = 0;
          for await (const { output } of events as AsyncIterable<{ output: Tensor }>) {
            sum = (output.data as Float32Array).reduce((a, b) => a + b, sum);
            yield sum;
          }
          yield 'end';
        })();
      },
    });

    expect(await collect(serving.stream([1, 2, 3]))).toEqual([6, 12, 'end']);
    expect(seen.slice(0, 2)).toEqual(['info', 'batch']);
  });

  it('[8.2] A stream starts when it is consumed, and every consumer makes a call of its own', async () => {
    const batchFunction = jest.fn(doubled);
    const serving = await serve({ name: 'cold', model: { useFactory: () => batchFunction } });
    const stream = serving.stream(numbers(1, 2));
    await turn();
    expect(batchFunction).not.toHaveBeenCalled();

    const all = await Promise.all([collect(stream), lastValueFrom(stream.pipe(toArray()))]);

    expect(stream).toBeInstanceOf(ServingStream);
    expect(all[0]).toEqual([{ ...event(0, 2, 4), metadata: undefined }]);
    expect(all[1]).toEqual(all[0]);
    expect(batchFunction.mock.calls).toEqual([[floats([4], [1, 2, 1, 2]), expect.anything()]]);
  });

  it('[4.5] [8.2] Events arrive in the order of the rows when later batches finish first', async () => {
    const held = new HeldFunction<never>();
    const serving = await serve({
      name: 'held',
      model: { useFactory: held.useFactory },
      batchSize: 2,
      partitions: 3,
    });
    const reading = lastValueFrom(serving.stream(numbers(1, 2, 3, 4, 5, 6)).pipe(toArray()));
    await turn();
    expect(held.batches).toHaveLength(3);
    for (const { rows, finish } of held.batches.splice(0).toReversed()) {
      finish(withMetadata(doubled(rows), 'doubled'));
      await turn();
    }

    expect(await reading).toEqual([event(0, 2, 4), event(2, 6, 8), event(4, 10, 12)]);
  });

  it('[8.2] An event arrives as soon as its batch has run', async () => {
    const held = new HeldFunction<never>();
    const serving = await serve({
      name: 'held',
      model: { useFactory: held.useFactory },
      batchSize: 1,
    });
    const seen: unknown[] = [];
    const ended = jest.fn();
    serving.stream(numbers(1, 2)).subscribe({ next: (value) => seen.push(value), complete: ended });
    await turn();
    await goOn(held);
    expect(seen).toEqual([event(0, 2)]);
    expect(ended).not.toHaveBeenCalled();

    await goOn(held);
    expect(seen).toEqual([event(0, 2), event(1, 4)]);
    expect(ended).toHaveBeenCalledTimes(1);
  });

  it.each([true, false])(
    '[6.1] [8.2] A failed batch ends the stream with the cause, after the events before it (inline: %j)',
    async (inline) => {
      const serving = await serve({
        name: 'fails',
        batchSize: 1,
        model: {
          useFactory: () => (rows: Tensor) =>
            rows.data[0] === 2 ? Promise.reject(new RangeError('oops')) : doubled(rows),
        },
      });
      const seen: unknown[] = [];
      const reading = (async () => {
        for await (const { batch } of serving.stream(numbers(1, 2, 3), { inline })) {
          seen.push(batch.offset);
        }
      })();

      await expect(reading).rejects.toMatchObject({
        code: 'SERVING_BATCH_FAILED',
        cause: new RangeError('oops'),
      });
      expect(seen).toEqual([0]);
      expect(await serving.batchedRun(numbers(1))).toEqual(floats([1], [2]));
    },
  );

  it('[2.3] [8.2] The consumer of a refused stream gets the error', async () => {
    const serving = await serve({ name: 'refuses', model: { useFactory: () => doubled } });

    await expect(collect(serving.stream(Batch.empty()))).rejects.toThrow(InvalidBatchError);
    await expect(collect(serving.stream(numbers(1).withKey('other')))).rejects.toThrow(
      /has no key "other"/,
    );
    await expect(
      collect(createServing({ name: 'stopped', model: { useFactory: () => doubled } }).stream(1)),
    ).rejects.toMatchObject({
      code: 'SERVING_CLOSED',
    });
  });

  it.each(['break', 'unsubscribe'])(
    '[7.3] [8.2] Leaving early by %s removes rows that have not run',
    async (how) => {
      const held = new HeldFunction<never>();
      const serving = await serve({
        name: 'held',
        model: { useFactory: held.useFactory },
        batchSize: 1,
      });
      const stream = serving.stream(numbers(1, 2, 3, 4));
      if (how === 'break') {
        const reading = (async () => {
          for await (const first of stream) {
            return first;
          }
          return undefined;
        })();
        await turn();
        await goOn(held);
        expect(await reading).toEqual(event(0, 2));
      } else {
        const subscription = stream.subscribe(() => subscription.unsubscribe());
        await turn();
        await goOn(held);
      }
      const next = serving.batchedRun(numbers(9));
      await turn();

      // The second batch waited for the first when its consumer left. Neither it nor a later one
      // runs.
      expect(held.rows).toEqual([floats([1], [9])]);
      await goOn(held);
      expect(await next).toEqual(floats([1], [18]));
    },
  );

  it('[8.2] A slow consumer delays its own call and no other', async () => {
    const batchFunction = jest.fn(doubled);
    const serving = await serve({
      name: 'slow',
      model: { useFactory: () => batchFunction },
      batchSize: 1,
    });
    const sequence = serving.stream(numbers(...Array.from({ length: 50 }, (_, i) => i)));
    const slow = sequence[Symbol.asyncIterator]();
    await slow.next();
    await turn();

    expect(batchFunction.mock.calls.length).toBeLessThanOrEqual(3);
    expect(await serving.batchedRun(numbers(1))).toEqual(floats([1], [2]));
    let events = 1;
    for (let next = await slow.next(); !next.done; next = await slow.next()) {
      events++;
    }
    expect(events).toBe(50);
  });

  it('[3.1] [8.2] Without a batch size an inline call streams one event', async () => {
    const serving = createServing({ name: 'whole', model: { useFactory: () => doubled } });
    const events = await collect(
      serving.stream(numbers(...Array.from({ length: 100 }, (_, i) => i)), { inline: true }),
    );

    expect(events.map(({ batch }) => batch)).toEqual([{ offset: 0, rows: 100 }]);
  });
});
