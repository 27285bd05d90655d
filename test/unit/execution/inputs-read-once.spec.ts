import { Readable } from 'node:stream';
import { describe, expect, it } from '@jest/globals';
import { Batch, InvalidInputError, type ServingStream, type StreamEvent } from 'nestjs-serving';
import { of } from 'rxjs';
import { collect } from '../../fixtures/async/collect.js';
import { useServings } from '../../fixtures/serving/use-servings.js';
import { useVirtualTime } from '../../fixtures/async/virtual-time.js';

function* counting(): Generator<number> {
  yield* [1, 2, 3, 4];
}

async function* countingSlowly(): AsyncGenerator<number> {
  yield* counting();
}

async function read(stream: ServingStream<StreamEvent>): Promise<unknown[]> {
  const events = await collect(stream);
  return events.flatMap(({ output }) => output);
}

describe('An input that can be read only once', () => {
  useVirtualTime();
  const start = useServings();
  const same = {
    name: 'same',
    batchSize: 2,
    model: { useFactory: () => (rows: number[]) => rows },
  };
  const all = [1, 2, 3, 4];

  it.each<[string, () => unknown]>([
    ['a generator', counting],
    ['an async generator', countingSlowly],
    ['the iterator of a list', () => all.values()],
    ['a stream of Node', () => Readable.from(all)],
    ['a stream of the web', () => Readable.toWeb(Readable.from(all))],
  ])(
    '[W16] A stream over %s gives all rows to its first reader and refuses the second',
    async (_, make) => {
      const serving = await start(same);
      const together = serving.stream(make());
      const inTurn = serving.stream(make());

      const [first, second] = await Promise.allSettled([read(together), read(together)]);
      const third = await read(inTurn);

      expect(first).toEqual({ status: 'fulfilled', value: all });
      expect(second).toMatchObject({
        status: 'rejected',
        reason: { code: 'SERVING_INVALID_INPUT' },
      });
      expect(third).toEqual(all);
      await expect(read(inTurn)).rejects.toThrow(/can be read only once/);
    },
  );

  it('[W16] A reader after one that left early is refused', async () => {
    const serving = await start(same);
    const stream = serving.stream(countingSlowly());
    for await (const event of stream) {
      expect(event).toMatchObject({ output: [1] });
      break;
    }

    await expect(read(stream)).rejects.toThrow(InvalidInputError);
  });

  it('[W16] A second call with the generator of another call is refused', async () => {
    const serving = await start(same);
    const rows = counting();

    await expect(serving.batchedRun(rows)).resolves.toEqual(all);
    await expect(serving.batchedRun(rows)).rejects.toThrow(InvalidInputError);
    await expect(serving.run(rows)).rejects.toThrow(InvalidInputError);
  });

  it('[W16] A second reader of a generator that preprocess reads is refused too', async () => {
    const serving = await start({
      ...same,
      preprocess: (rows: AsyncIterable<number>) => ({
        batch: (async function* () {
          yield* rows;
        })(),
      }),
    });
    const stream = serving.stream(countingSlowly());

    await expect(read(stream)).resolves.toEqual(all);
    await expect(read(stream)).rejects.toThrow(InvalidInputError);
  });

  it.each<[string, unknown]>([
    ['an iterable that begins anew', { [Symbol.asyncIterator]: countingSlowly }],
    ['an Observable', of(1, 2, 3, 4)],
    ['a list of batches', all.map((row) => Batch.stack([row]))],
  ])('[W16] Each reader of a stream over %s gets all rows', async (_, input) => {
    const serving = await start(same);
    const stream = serving.stream(input);

    const both = await Promise.all([read(stream), read(stream)]);

    expect(both).toEqual([all, all]);
  });

  it('[W16] A row with a field named next is a row like any other', async () => {
    const serving = await start(same);
    const row = { next: 2 };

    await expect(serving.batchedRun(row)).resolves.toBe(row);
    await expect(serving.batchedRun(row)).resolves.toBe(row);
  });
});
