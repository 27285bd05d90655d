import { getEventListeners } from 'node:events';
import { describe, expect, it } from '@jest/globals';
import { Batch, BatchFailedError, type OutputEvent, ServingClosedError } from 'nestjs-serving';
import { map, take, toArray, lastValueFrom } from 'rxjs';
import { HeldFunction } from '../../fixtures/batching/held-function.js';
import { linearModel } from '../../fixtures/models/models.js';
import { iterated, observed, outputsOf, until } from '../../fixtures/async/streams.js';
import { floats } from '../../fixtures/values/tensors.js';
import { useServings } from '../../fixtures/serving/use-servings.js';
import { turn } from '../../fixtures/async/virtual-time.js';

const rowsOf = (count: number): Batch =>
  Batch.stack(Array.from({ length: count }, (_, n) => `${n}`));
const inPieces = () => rowsOf(20).chunksOf(3).values();
const finishAll = (held: HeldFunction): void =>
  held.batches.splice(0).forEach(({ rows, finish }) => finish(rows));

describe('A stream', () => {
  const serve = useServings();
  const counted = async (options: object = {}) => {
    const ran: string[] = [];
    const useFactory = () => (rows: string[]) => (ran.push(...rows), rows);
    return {
      ran,
      serving: await serve({ name: 'counted', model: { useFactory }, batchSize: 2, ...options }),
    };
  };

  it('[8.2] Outputs arrive in the order of the rows although the batches finish in another', async () => {
    const held = new HeldFunction();
    const serving = await serve({
      name: 'held',
      model: { useFactory: held.useFactory },
      batchSize: 2,
      partitions: 3,
    });
    const events: OutputEvent[] = [];
    const done = (async () => {
      for await (const event of serving.stream(rowsOf(5))) {
        events.push(event);
      }
    })();
    await until(() => held.batches.length === 3);

    for (const [batch, come] of [
      [2, 0],
      [1, 0],
      [0, 3],
    ] as const) {
      const { rows, finish } = held.batches[batch]!;
      finish(rows);
      await turn();
      expect(events).toHaveLength(come);
    }
    await done;

    expect(events).toEqual([
      { batch: { offset: 0, rows: 2 }, output: ['0', '1'], metadata: undefined },
      { batch: { offset: 2, rows: 2 }, output: ['2', '3'], metadata: undefined },
      { batch: { offset: 4, rows: 1 }, output: ['4'], metadata: undefined },
    ]);
  });

  it('[8.2] A stream over one value has one result', async () => {
    const { serving } = await counted();

    expect(await iterated(serving.stream('a'))).toEqual([
      { batch: { offset: 0, rows: 1 }, output: 'a', metadata: undefined },
    ]);
  });

  it('[8.2] A stream of a model has tensors, each in memory of its own', async () => {
    const serving = await serve({ name: 'linear', model: linearModel('batch'), batchSize: 2 });
    const x = floats([3, 3], [1, 0, 0, 0, 1, 0, 0, 0, 1]);

    const events = await iterated(serving.stream(x));

    expect(outputsOf(events)).toEqual([
      { y: floats([2, 2], [0.1, 0.2, 0.3, -0.4]) },
      { y: floats([1, 2], [0.5, 0.6]) },
    ]);
    const whole = (await serving.batchedRun(x)) as { y: { data: Float32Array } };
    expect([...whole.y.data]).toEqual(
      outputsOf(events).flatMap((output) => [...(output as typeof whole).y.data]),
    );
  });

  it('[8.2] A stream is the same as Observable and as async iterable, and each use is a call of its own', async () => {
    const { serving, ran } = await counted();
    const stream = serving.stream(rowsOf(5));
    await turn();
    expect(ran).toEqual([]);

    const [one, two, three] = await Promise.all([
      observed(stream),
      iterated(stream),
      lastValueFrom(
        stream.pipe(
          map(({ output }) => output),
          toArray(),
        ),
      ),
    ]);

    const rows = ['0', '1', '2', '3', '4'];
    expect([outputsOf(one), outputsOf(two), three].map((outputs) => outputs.flat())).toEqual([
      rows,
      rows,
      rows,
    ]);
    expect(ran).toHaveLength(15);
  });

  it('[8.2] A stream advances as fast as it is read, with bounded work ahead, and does not delay others', async () => {
    const { serving, ran } = await counted({ partitions: 2 });
    const events = serving.stream(rowsOf(1000))[Symbol.asyncIterator]();

    await events.next();
    await turn();
    await turn();
    expect(ran).toHaveLength(10);
    expect(await serving.batchedRun('other')).toBe('other');
    await events.next();
    await turn();
    expect(ran).toHaveLength(13);

    await events.return!();
  });

  it.each<
    [
      string,
      (
        stream: (
          signal?: AbortSignal,
        ) => ReturnType<Awaited<ReturnType<typeof counted>>['serving']['stream']>,
      ) => Promise<unknown>,
    ]
  >([
    [
      'break',
      async (stream) => {
        for await (const _ of stream()) {
          break;
        }
      },
    ],
    ['unsubscribe', (stream) => lastValueFrom(stream().pipe(take(1)))],
    [
      'an AbortSignal',
      async (stream) => {
        const controller = new AbortController();
        const reading = (async () => {
          for await (const _ of stream(controller.signal)) {
            controller.abort(new Error('left'));
          }
        })();
        await expect(reading).rejects.toThrow('left');
      },
    ],
    [
      'an AbortSignal from outside',
      async (stream) => {
        const controller = new AbortController();
        const reading = iterated(stream(controller.signal));
        await turn();
        controller.abort(new Error('left'));
        await expect(reading).rejects.toThrow('left');
      },
    ],
  ])('[8.2] A stream that is left by %s runs no more rows', async (_, leave) => {
    const { serving, ran } = await counted();

    await leave((signal) => serving.stream(rowsOf(1e6), { signal }));
    const { length } = ran;
    expect(await serving.batchedRun('next')).toBe('next');
    await turn();

    expect(length).toBeLessThan(1000);
    expect(ran.slice(length).filter((row) => row !== 'next')).toEqual([]);
  });

  it('[8.2] A stream that is left while it waits for a partition takes none', async () => {
    const held = new HeldFunction();
    const serving = await serve({
      name: 'held',
      model: { useFactory: held.useFactory },
      batchSize: 2,
    });
    const first = serving.batchedRun('first');
    await until(() => held.batches.length === 1);
    const subscription = serving.stream(rowsOf(6)).subscribe();
    await turn();

    subscription.unsubscribe();
    const second = serving.batchedRun('second');
    finishAll(held);
    await first;
    await until(() => held.batches.length === 1);

    expect(held.rows).toEqual([['second']]);
    finishAll(held);
    await second;
  });

  it('[8.2] A stream whose signal has aborted before it starts does nothing', async () => {
    const { serving, ran } = await counted();
    const stream = serving.stream('a', { signal: AbortSignal.abort(new Error('too late')) });

    await expect(iterated(stream)).rejects.toThrow('too late');
    await expect(observed(stream)).rejects.toThrow('too late');

    expect(ran).toEqual([]);
  });

  it('[8.2] [7.4] A stream leaves nothing on a signal that outlives it, however it ends', async () => {
    const { serving } = await counted({
      model: {
        useFactory: () => (rows: string[]) => {
          if (rows.includes('bad')) {
            throw new RangeError('bad');
          }
          return rows;
        },
      },
    });
    const { signal } = new AbortController();
    const stream = (input: unknown = rowsOf(20)) => serving.stream(input, { signal });

    for (let times = 0; times < 20; times++) {
      await iterated(stream());
      await observed(stream(inPieces()));
      await expect(iterated(stream('bad'))).rejects.toThrow(BatchFailedError);
      await lastValueFrom(stream().pipe(take(2)));
      for await (const _ of stream(inPieces())) {
        break;
      }
      await stream()[Symbol.asyncIterator]().return!();
      stream().subscribe().unsubscribe();
      await serving.batchedRun(inPieces(), { signal });
      await expect(serving.batchedRun(['bad', 'a'].values(), { signal })).rejects.toThrow(
        BatchFailedError,
      );
      await serving.run('a', { signal });
    }
    await turn();

    expect(getEventListeners(signal, 'abort')).toEqual([]);
  });

  it('[8.2] A stream fails with its batch after the outputs before it', async () => {
    const held = new HeldFunction();
    const serving = await serve({
      name: 'held',
      model: { useFactory: held.useFactory },
      batchSize: 2,
      partitions: 2,
    });
    const outputs: unknown[] = [];
    const reading = (async () => {
      for await (const { output } of serving.stream(rowsOf(100))) {
        outputs.push(output);
      }
    })();
    await until(() => held.batches.length === 2);

    held.batches[1]!.fail(new RangeError('no memory'));
    held.batches[0]!.finish(['0', '1']);

    await expect(reading).rejects.toThrow('a batch of 2 rows failed: no memory');
    expect(outputs).toEqual([['0', '1']]);
    held.batches.splice(0, 2);
    await turn();
    finishAll(held);
    await turn();
    expect(held.rows).toEqual([]);
  });

  it('[8.2] A stream of a closed serving fails', async () => {
    const serving = await serve({
      name: 'closed',
      model: { useFactory: () => (rows: unknown[]) => rows },
    });
    const stream = serving.stream('a');
    await serving.close();

    await expect(iterated(stream)).rejects.toThrow(ServingClosedError);
    await expect(observed(serving.stream('a', { inline: true }))).rejects.toThrow(
      ServingClosedError,
    );
  });

  it('[8.2] [12.1] The end of a stream is reported once, whether it was read, left or failed', async () => {
    const { serving } = await counted();
    const ends: unknown[] = [];
    serving
      .eventsOf('call:end')
      .subscribe(({ mode, error }) => ends.push([mode, error instanceof Error]));

    await iterated(serving.stream(rowsOf(4)));
    await lastValueFrom(serving.stream(rowsOf(4)).pipe(take(1)));
    await turn();
    await expect(iterated(serving.stream(Batch.empty()))).rejects.toThrow('without rows');

    expect(ends).toEqual([
      ['stream', false],
      ['stream', false],
      ['stream', true],
    ]);
  });

  it('[8.2] Each of thousands of streams gets its own outputs', async () => {
    const { serving } = await counted({
      batchSize: 32,
      partitions: 2,
      model: {
        useFactory: () =>
          async function* (rows: string[]) {
            for (let step = 0; step < 3; step++) {
              yield rows.map((row) => `${row} ${step}`);
            }
          },
      },
    });

    const replies = await Promise.all(
      Array.from({ length: 3000 }, (_, n) => iterated(serving.stream(`${n}`))),
    );

    expect(replies.map(outputsOf)).toEqual(
      replies.map((_, n) => [0, 1, 2].map((step) => `${n} ${step}`)),
    );
  });
});
