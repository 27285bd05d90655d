import { describe, expect, it } from '@jest/globals';
import {
  Batch,
  type LocalServing,
  ServingClosedError,
  type ServingOptions,
  type ServingStream,
} from 'nestjs-serving';
import { HeldFunction } from '../../fixtures/batching/held-function.js';
import { stepped, type SteppedRow } from '../../fixtures/batching/stepped.js';
import { iterated, outputsOf, until } from '../../fixtures/async/streams.js';
import { useServings } from '../../fixtures/serving/use-servings.js';
import { turn } from '../../fixtures/async/virtual-time.js';

const steps = await stepped('steps');
const row = (name: string, count: number): SteppedRow => ({ name, steps: count });

/** Starts to read and resolves at the first event. */
async function begin<T>(stream: ServingStream<T>): Promise<{ rest: Promise<T[]> }> {
  const events = stream[Symbol.asyncIterator]();
  const { value } = await events.next();
  return { rest: iterated(events).then((more) => [value as T, ...more]) };
}

describe.each(['a function', 'a class', 'a thread'] as const)(
  'A generator in %s, when its serving closes',
  (host) => {
    const start = useServings();
    const serve = (
      options: Partial<ServingOptions>,
      counts = new Int32Array(new SharedArrayBuffer(8)),
    ): Promise<LocalServing> => start({ ...steps[host]({ counts }), batchSize: 2, ...options });

    it('[9.3] [8.4] A running generator and waiting calls go on to their end', async () => {
      const serving = await serve({ shutdown: { drain: true } });
      const running = await begin(serving.stream(row('a', 20)));
      const waiting = iterated(serving.stream(Batch.stack([row('b', 2), row('c', 1)])));
      await turn();

      const closed = serving.close();
      await expect(iterated(serving.stream(row('d', 1)))).rejects.toThrow(ServingClosedError);

      expect(await running.rest).toHaveLength(20);
      expect(outputsOf(await waiting)).toEqual([
        ['b0', 'c0'],
        ['b1', undefined],
      ]);
      await closed;
      expect(serving.state).toBe('closed');
    });

    it('[9.3] [8.4] Without draining a running generator goes on to its end, and waiting calls get the closed error', async () => {
      const counts = new Int32Array(new SharedArrayBuffer(12));
      const serving = await serve({ shutdown: { drain: false }, batchSize: 1 }, counts);
      const running = await begin(serving.stream(row('a', 20)));
      // A thread was handed one batch ahead and runs it.
      const ahead = Promise.allSettled([iterated(serving.stream(row('b', 2)))]);
      const waiting = iterated(serving.stream(row('c', 2)));
      await turn();

      const closed = serving.close();

      await expect(waiting).rejects.toThrow(ServingClosedError);
      Atomics.store(counts, 2, 1);
      expect(await running.rest).toHaveLength(20);
      await Promise.all([ahead, closed]);
    });
  },
);

describe.each(['a function', 'a class', 'a thread'] as const)(
  'A generator in %s, at the shutdown limit',
  (host) => {
    const start = useServings();

    it.each([
      ['in batches, drained', false, true],
      ['in batches, not drained', false, false],
      ['alone', true, true],
    ])(
      '[9.3] [8.4] A generator ends at its next step, and its callers get the closed error: %s',
      async (_, inline, drain) => {
        const counts = new Int32Array(new SharedArrayBuffer(8));
        const serving = await start({
          ...steps[host]({ counts }),
          shutdown: { drain, timeout: 20 },
        });
        const running = await begin(serving.stream(row('a', 1e9), { inline }));
        const rejected = expect(running.rest).rejects.toThrow(ServingClosedError);

        await serving.close();

        await rejected;
        await until(() => counts[1] === 1);
      },
    );
  },
);

describe('A stream, when its serving closes', () => {
  const start = useServings();

  it('[9.3] [3.1] An inline stream goes on to its end', async () => {
    const held = new HeldFunction();
    const serving = await start({
      name: 'held',
      model: { useFactory: held.useFactory },
      batchSize: 1,
    });
    const outputs: unknown[] = [];
    const reading = (async () => {
      for await (const { output } of serving.stream(Batch.stack(['a', 'b', 'c', 'd']), {
        inline: true,
      })) {
        outputs.push(output);
      }
    })();
    await until(() => held.batches.length === 1);
    let isClosed = false;

    const closed = serving.close().then(() => (isClosed = true));
    for (let batches = 0; batches < 4; batches++) {
      await until(() => held.batches.length === 1);
      expect(isClosed).toBe(false);
      const { rows, finish } = held.next();
      finish(rows);
    }
    await Promise.all([reading, closed]);

    expect(outputs).toEqual([['a'], ['b'], ['c'], ['d']]);
  });

  it('[9.3] [8.2] A stream emits the outputs of submitted rows and then the closed error', async () => {
    const held = new HeldFunction();
    const serving = await start({
      name: 'held',
      model: { useFactory: held.useFactory },
      batchSize: 1,
    });
    let left = false;
    const endless = function* () {
      try {
        for (let n = 0; ; n++) {
          yield `${n}`;
        }
      } finally {
        left = true;
      }
    };
    const outputs: unknown[] = [];
    const reading = (async () => {
      for await (const { output } of serving.stream(endless())) {
        outputs.push(output);
      }
    })();
    const failed = expect(reading).rejects.toThrow(ServingClosedError);
    await until(() => held.batches.length === 1);

    const closed = serving.close();
    for (let batches = 0; batches < 2; batches++) {
      await until(() => held.batches.length === 1);
      const { rows, finish } = held.next();
      finish(rows);
    }
    await Promise.all([failed, closed]);

    expect(outputs).toEqual([['0'], ['1']]);
    expect(left).toBe(true);
  });
});
