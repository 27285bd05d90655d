import { describe, expect, it } from '@jest/globals';
import {
  type BatchEndEvent,
  createServing,
  type LocalServing,
  OverloadedError,
  type ServingOptions,
} from 'nestjs-serving';
import type { BatchStartEvent } from '../../../lib/events/serving-event.js';
import { later, passTime, useVirtualTime } from '../../fixtures/async/virtual-time.js';
import { useServings } from '../../fixtures/serving/use-servings.js';

/** Takes 10 ms and 2 ms for each row. */
const useFactory = () => async (rows: readonly string[]) => {
  await new Promise((resolve) => setTimeout(resolve, 10 + 2 * rows.length));
  return rows;
};

/** The codes of the errors of this many calls at once. */
async function codesOf(serving: LocalServing, calls: number): Promise<string[]> {
  const answers = await passTime(
    Promise.allSettled(Array.from({ length: calls }, () => serving.batchedRun('a'))),
    1,
  );
  return answers.flatMap((answer) =>
    answer.status === 'rejected' ? [(answer.reason as { code: string }).code] : [],
  );
}

describe('A serving with a latency target', () => {
  useVirtualTime();
  const start = useServings();

  const started = (options: Partial<ServingOptions> = {}): Promise<LocalServing> =>
    passTime(
      start(
        createServing({
          name: 'target',
          batchSize: 8,
          latencyTarget: 50,
          warmUp: ['row'],
          useFactory,
          ...options,
        }),
      ),
      1,
    );

  it('[15.6] is warmed up with batches of one row and of the batch size, from which it learns', async () => {
    const sizes: number[] = [];
    const serving = await started({
      useFactory: () => {
        const run = useFactory();
        return (rows: readonly string[]) => (sizes.push(rows.length), run(rows));
      },
    } as Partial<ServingOptions>);

    expect(sizes).toEqual(Array.from({ length: 5 }, () => [1, 8]).flat());
    expect(await codesOf(serving, 1)).toEqual([]);
    expect(serving.targets()).toEqual([
      {
        key: 'default',
        latencyTarget: 50,
        batchSize: 5,
        expected: expect.closeTo(20, 1),
        // Ten exact runs, and sixteen with the spread that is assumed before any.
        overrun: expect.closeTo(1.35, 2),
      },
    ]);
  });

  it('[15.2] [15.4] refuses the calls of a rush that would be late, and counts them', async () => {
    const serving = await started();

    const codes = await codesOf(serving, 100);

    const { answered, failed } = serving.counters();
    expect(new Set(codes)).toEqual(new Set(['SERVING_OVERLOADED']));
    expect(failed).toEqual({ SERVING_OVERLOADED: codes.length });
    expect(answered).toBe(100 - codes.length);
    expect(answered).toBeGreaterThan(4);
    await expect(passTime(serving.batchedRun('later'))).resolves.toBe('later');
  });

  it('[15.4] reports with each batch how long it was expected to run, and that the target has limited it', async () => {
    const serving = await started({ batchSize: 32 });
    const starts: BatchStartEvent[] = [];
    const ends: BatchEndEvent[] = [];
    serving.eventsOf('batch:start').subscribe((event) => starts.push(event));
    serving.eventsOf('batch:end').subscribe((event) => ends.push(event));

    const first = serving.batchedRun('a');
    await later();
    const others = codesOf(serving, 20);
    await passTime(Promise.all([first, others]), 1);

    expect(starts.map(({ rows, reason }) => ({ rows, reason }))).toEqual([
      { rows: 1, reason: 'idle' },
      { rows: 8, reason: 'target' },
    ]);
    expect(starts[1]!.batchSize).toBe(8);
    expect(ends.map(({ expected, runTime }) => [expected, runTime])).toEqual([
      [expect.closeTo(12, 1), expect.closeTo(12, 0)],
      [expect.closeTo(26, 1), expect.closeTo(26, 0)],
    ]);
  });

  it('[15.2] [3.1] refuses no call of run, which shares no batch', async () => {
    const serving = await started();
    const rows = Array.from({ length: 20 }, () => 'a');

    const answers = await passTime(Promise.allSettled(rows.map((row) => serving.run(row))), 1);

    expect(answers.map(({ status }) => status)).toEqual(rows.map(() => 'fulfilled'));
  });

  it('[15.2] leaves the timeout of a call as it is, and refuses earlier', async () => {
    const serving = await started();
    const running = serving.batchedRun('a', { timeout: 1000 });
    await later();
    const calls = Array.from({ length: 30 }, () => serving.batchedRun('a', { timeout: 1000 }));
    calls.forEach((call) => void call.catch(() => {}));
    await expect(calls.at(-1)).rejects.toBeInstanceOf(OverloadedError);
    await expect(serving.batchedRun('a', { timeout: 5 })).rejects.toMatchObject({
      code: 'SERVING_DEADLINE_TOO_SHORT',
    });

    await passTime(Promise.allSettled([running, ...calls]), 1);
  });

  it('[15.4] A serving without a target has none to report', async () => {
    const serving = await started({ latencyTarget: undefined, warmUp: [] });

    expect(serving.targets()).toEqual([]);
  });
});
