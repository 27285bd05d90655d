import { describe, expect, it } from '@jest/globals';
import {
  type BatchEndEvent,
  type BatchStartEvent,
  createServing,
  type LocalServing,
  OverloadedError,
  type ServingOptions,
} from 'nestjs-serving';
import { later, passTime, useVirtualTime } from '../../fixtures/async/virtual-time.js';
import { randomNumbers } from '../../fixtures/batching/random-numbers.js';
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
          batchSize: { rows: 8, latencyTarget: 50 },
          warmUp: ['row'],
          model: { useFactory },
          ...options,
        }),
      ),
      1,
    );

  it('[15.6] is warmed up with batches of one row and of the batch size, from which it learns', async () => {
    const sizes: number[] = [];
    const serving = await started({
      model: {
        useFactory: () => {
          const run = useFactory();
          return (rows: readonly string[]) => (sizes.push(rows.length), run(rows));
        },
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
    const serving = await started({ batchSize: { rows: 32, latencyTarget: 50 } });
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
    const serving = await started({ batchSize: undefined, warmUp: [] });

    expect(serving.targets()).toEqual([]);
  });

  it('[A1] with a timeout in place of a target, learns the times of both sizes from one more run each', async () => {
    const sizes: number[] = [];
    const serving = await started({
      batchSize: 8,
      timeout: 100,
      model: {
        useFactory: () => {
          const run = useFactory();
          return (rows: readonly string[]) => (sizes.push(rows.length), run(rows));
        },
      },
    } as Partial<ServingOptions>);
    const ran: unknown[] = [];
    serving
      .eventsOf('batch:end')
      .subscribe(({ rows, expected }) => ran.push([rows, Math.round(expected ?? NaN)]));

    expect(sizes).toEqual([1, 8, 1, 8]);
    for (let call = 0; call < 7; call++) {
      await passTime(serving.batchedRun('a'));
    }
    expect(await codesOf(serving, 8)).toEqual([]);

    expect(ran.slice(-2)).toEqual([
      [1, 12],
      [8, 26],
    ]);
  });

  it('[A2] [N6] answers a load that fits in time, beside a budget, whatever its rows cost', async () => {
    const random = randomNumbers(7);
    const serving = await started({
      batchSize: {
        rows: 32,
        cost: { of: (text: string) => text.length, most: 256 },
        latencyTarget: 50,
      },
      warmUp: ['x'.repeat(64)],
      // 36 ms for the whole budget.
      model: {
        useFactory: () => async (texts: readonly string[]) => {
          const tokens = texts.join('').length;
          await new Promise((resolve) => setTimeout(resolve, 4 + tokens / 8));
          return texts;
        },
      },
    } as Partial<ServingOptions>);
    const [target] = serving.targets();
    const outcomes: Promise<number>[] = [];

    for (let call = 0; call < 800; call++) {
      const text = 'x'.repeat(random() < 0.8 ? 1 + 15 * random() : 16 + 112 * random());
      const begin = performance.now();
      outcomes.push(serving.batchedRun(text).then(() => performance.now() - begin));
      // Step by step, since a batch that ends lets the next one start a turn later.
      for (let wait = -8 * Math.log(1 - random()); wait > 0; wait -= 1) {
        await later(Math.min(wait, 1));
      }
    }
    const settled = await passTime(Promise.allSettled(outcomes), 1);

    const times = settled.flatMap((each) => (each.status === 'fulfilled' ? [each.value] : []));
    expect(target).toMatchObject({ batchSize: 32, cost: 136, expected: expect.closeTo(21, 0) });
    expect(times.length / 800).toBeGreaterThan(0.98);
    expect(times.filter((time) => time <= 50).length / times.length).toBeGreaterThan(0.99);
  });
});
