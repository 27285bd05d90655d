import { getEventListeners } from 'node:events';
import { describe, expect, it } from '@jest/globals';
import {
  Batch,
  type BatchEndEvent,
  BatchFailedError,
  type CallEndEvent,
  OverloadedError,
  Tensor,
} from 'nestjs-serving';
import { recordBatches } from 'nestjs-serving/testing';
import { collect } from '../../fixtures/async/collect.js';
import { doubled, doubledNumbers, goOn, numbers } from '../../fixtures/batching/doubling.js';
import { useServings } from '../../fixtures/serving/use-servings.js';
import { later, turn, useVirtualTime } from '../../fixtures/async/virtual-time.js';
import { useHeldServings } from '../../fixtures/serving/use-held-servings.js';

describe('Faults of Nx.Serving, in virtual time', () => {
  useVirtualTime();
  const serve = useServings();
  const hold = useHeldServings();

  it('[7.3] A call leaves nothing on the signal of its caller, however it ends', async () => {
    const serving = await serve({
      name: 'tidy',
      model: {
        useFactory: () => (rows: number[]) =>
          rows.map((row) => (row < 0 ? new RangeError('negative') : row)),
      },
    });
    const { signal } = new AbortController();

    await Promise.allSettled([
      serving.batchedRun(1, { signal }),
      serving.batchedRun(-1, { signal }),
      serving.batchedRun(Batch.empty(), { signal }),
      serving.batchedRun([numbers(1), numbers(2)], { signal }),
      serving.run(1, { signal }),
      collect(serving.stream(Batch.stack([1, 2]), { signal })),
      collect(serving.stream(-1, { signal })),
    ]);

    expect(getEventListeners(signal, 'abort')).toEqual([]);
  });

  it('[6.2] A failed row fails its caller alone, in calls and in streams', async () => {
    const serving = await serve({
      name: 'rows',
      model: {
        useFactory: () => (rows: number[]) =>
          rows.map((row) => (row < 0 ? new RangeError(`${row}`) : row)),
      },
    });
    const batches = recordBatches(serving);

    const replies = await Promise.allSettled([
      serving.batchedRun(1),
      serving.batchedRun(-2),
      collect(serving.stream(-3)),
      collect(serving.stream(4)),
    ]);
    await turn();

    expect(replies).toMatchObject([
      { value: 1 },
      { reason: new RangeError('-2') },
      { reason: new RangeError('-3') },
      { value: [{ output: 4 }] },
    ]);
    expect(batches.map(({ rows }) => rows)).toEqual([4]);
  });

  describe('limits', () => {
    it('[7.1] A call beyond the queue limit is refused at once with 503', async () => {
      const { held, serving } = await hold({ batchSize: 1, queue: { maxRows: 2 } });
      const calls = [1, 2, 3, 4].map((value) => serving.batchedRun(numbers(value)));
      const refused = await Promise.allSettled([calls.pop()]);
      await turn();
      while (held.batches.length > 0) {
        await goOn(held);
      }

      expect(refused).toMatchObject([{ reason: expect.any(OverloadedError) }]);
      expect(refused).toMatchObject([{ reason: { statusCode: 503 } }]);
      expect(await Promise.all(calls)).toEqual([1, 2, 3].map((value) => doubledNumbers(value)));
    });

    it('[7.2] A call with a signal on a timer is answered in time although all partitions are busy', async () => {
      const { held, serving } = await hold();
      const running = serving.batchedRun(numbers(1));
      await turn();
      const controller = new AbortController();
      setTimeout(() => controller.abort(new DOMException('too late', 'TimeoutError')), 200);
      const late = expect(
        serving.batchedRun(numbers(2), { signal: controller.signal }),
      ).rejects.toThrow('too late');
      await later(200);
      await late;
      await goOn(held);

      expect(held.batches).toEqual([]);
      expect(await running).toEqual(doubledNumbers(1));
    });

    it('[7.3] Cancelled rows make room in the queue at once', async () => {
      const { held, serving } = await hold({ batchSize: 2, queue: { maxRows: 2 } });
      const running = serving.batchedRun(numbers(1));
      await turn();
      const controller = new AbortController();
      const left = expect(
        serving.batchedRun(numbers(2, 3), { signal: controller.signal }),
      ).rejects.toThrow();
      await turn();
      controller.abort();
      await left;
      const calls = Promise.allSettled([
        serving.batchedRun(numbers(4, 5)),
        serving.batchedRun(numbers(6)),
      ]);
      await goOn(held);
      await turn();
      held.batches.forEach(({ rows, finish }) => finish(doubled(rows)));

      expect(await calls).toMatchObject([
        { value: doubledNumbers(4, 5) },
        { reason: expect.any(OverloadedError) },
      ]);
      expect(await running).toEqual(doubledNumbers(1));
    });

    it('[7.1] [7.3] Rows that have left count once, so that the queue limit stays the same', async () => {
      const { held, serving } = await hold({ batchSize: 2, queue: { maxRows: 6 } });
      const failed = expect(serving.batchedRun(numbers(1, 2, 3, 4, 5, 6))).rejects.toThrow('oops');
      await turn();
      held.next().fail(new RangeError('oops'));
      await failed;
      await turn();
      while (held.batches.length > 0) {
        await goOn(held);
      }
      const calls = Promise.allSettled(
        [numbers(1, 2, 3, 4, 5, 6), numbers(7, 8, 9)].map((rows) => serving.batchedRun(rows)),
      );
      await turn();
      while (held.batches.length > 0) {
        await goOn(held);
      }

      expect(await calls).toMatchObject([
        { status: 'fulfilled' },
        { reason: expect.any(OverloadedError) },
      ]);
    });

    it('[7.3] The places of cancelled rows go to others', async () => {
      const { held, serving } = await hold({ batchSize: 2 });
      const running = serving.batchedRun(numbers(1));
      await turn();
      const controller = new AbortController();
      const left = expect(
        serving.batchedRun(numbers(2), { signal: controller.signal }),
      ).rejects.toThrow();
      const replies = [running, serving.batchedRun(numbers(3))];
      await turn();
      controller.abort();
      await left;
      replies.push(serving.batchedRun(numbers(4)));
      await turn();
      const seen: unknown[] = [];
      while (held.batches.length > 0) {
        seen.push(held.rows[0]);
        await goOn(held);
      }

      expect(await Promise.all(replies)).toEqual([1, 3, 4].map((value) => doubledNumbers(value)));
      expect(seen.map((rows) => (rows as Tensor).dims[0])).toEqual([1, 2]);
    });
  });

  it('[12.2] Events report queue, wait, fill and size of batches, and refused calls', async () => {
    const { held, serving } = await hold({ batchSize: 2, queue: { maxRows: 2 } });
    const batches: BatchEndEvent[] = [];
    const calls: CallEndEvent[] = [];
    serving.eventsOf('batch:end').subscribe((batch) => batches.push(batch));
    serving.eventsOf('call:end').subscribe((call) => calls.push(call));
    const replies = Promise.allSettled(
      [[1], [2], [3], [4, 5]].map((values) => serving.batchedRun(numbers(...values))),
    );
    await turn();
    await later(30);
    await goOn(held);
    await later(5);
    await goOn(held);
    await replies;

    expect(batches).toMatchObject([
      {
        rows: 2,
        batchSize: 2,
        fill: 1,
        queued: 1,
        wait: 0,
        runTime: 30,
        partition: 0,
        key: 'default',
        reason: 'full',
      },
      { rows: 1, batchSize: 2, fill: 0.5, queued: 0, wait: 30, runTime: 5 },
    ]);
    expect(calls.find(({ error }) => error)).toMatchObject({ error: expect.any(OverloadedError) });
    expect(
      calls.filter(({ error }) => !error).map(({ waiting, running }) => [waiting, running]),
    ).toEqual([
      [0, 30],
      [0, 30],
      [30, 5],
    ]);
  });

  it('[6.1] A batch that runs out of memory fails its callers, and the next one runs', async () => {
    const { held, serving } = await hold();
    const failed = expect(serving.batchedRun(numbers(1))).rejects.toThrow(BatchFailedError);
    await turn();
    held.next().fail(new RangeError('Array buffer allocation failed'));
    await failed;
    const next = serving.batchedRun(numbers(2));
    await turn();
    await goOn(held);

    expect(await next).toEqual(doubledNumbers(2));
  });
});
