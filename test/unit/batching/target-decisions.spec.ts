import { describe, expect, it } from '@jest/globals';
import * as fc from 'fast-check';
import { OverloadedError, type ServingError } from 'nestjs-serving';
import { later, useVirtualTime } from '../../fixtures/async/virtual-time.js';
import { runAll } from '../../fixtures/batching/busy-batcher.js';
import {
  HeldBatcher,
  type HeldBatcherOptions,
  namesOf,
} from '../../fixtures/batching/held-batcher.js';

const timeOf = (rows: number): number => 10 + 2 * rows;

/**
 * A batcher that has learned from eight batches that they take 10 ms and 2 ms for each row, and
 * assumes that a run may take 1.5 times as long.
 */
function trained(options: HeldBatcherOptions = {}, time = timeOf): HeldBatcher {
  const batcher = new HeldBatcher({ batchSize: 8, latencyTarget: 50, ...options });
  const lane = batcher.lane();
  const { limits } = lane;
  for (const rows of [1, limits.batchSize, 1, limits.batchSize, 1, limits.batchSize, 1, 8]) {
    batcher.learn({ lane, size: rows }, time(rows));
  }
  return batcher;
}

/** A trained batcher that runs a row, which takes 12 ms. */
async function busy(options: HeldBatcherOptions = {}, time = timeOf): Promise<HeldBatcher> {
  const batcher = trained(options, time);
  batcher.call('busy');
  await later();
  return batcher;
}

function refusalOf(ask: () => unknown): ServingError | undefined {
  try {
    ask();
    return undefined;
  } catch (error) {
    return error as ServingError;
  }
}

const sizeOf = (batcher: HeldBatcher): number | undefined =>
  batcher.targetOf(batcher.lane().limits)?.batchSize;

describe('The decisions of a latency target', () => {
  useVirtualTime();

  it('[15.2] [15.3] One row a millisecond is admitted while it can be answered in time, in full batches', async () => {
    const batcher = trained();
    const start = performance.now();
    const timeline: string[] = [];
    for (const runTime of [0, 12, 20, 20, 20]) {
      let calls = '';
      for (let ms = 0; ms < runTime; ms++) {
        calls += refusalOf(() => batcher.call('a')) ? '-' : '+';
        await later(1);
      }
      timeline.push(`${performance.now() - start} ${calls}`);
      if (runTime === 0) {
        batcher.call('first');
      } else {
        batcher.finishBatch();
      }
      await later();
    }

    // Behind the first row, which takes 12 ms, a batch of eight takes 26 ms and fits into the target.
    // Then a batch of four is tried, since its time is not known. A further batch does not fit until
    // the one before it has run for a while.
    expect(timeline).toEqual([
      '0 ',
      '12 ++++++++----',
      '32 ---------------++++-',
      '52 ---++++++++---------',
      '72 ------------++++++++',
    ]);
    await runAll(batcher);
    expect(batcher.records.map(({ rows, reason }) => `${rows} ${reason}`)).toEqual([
      '1 idle',
      '8 full',
      '4 target',
      '8 full',
      '8 full',
    ]);
  });

  it('[15.2] A refused call fails at once with an OverloadedError, the time that it would need, and no stack', async () => {
    const batcher = await busy();
    batcher.call('a', 8);

    const error = refusalOf(() => batcher.call('b'));

    expect(error).toBeInstanceOf(OverloadedError);
    expect(error).toMatchObject({ code: 'SERVING_OVERLOADED', statusCode: 503, retryAfter: 1 });
    expect(error?.message).toMatch(
      /^Serving "held" would need about \d+ ms to answer and has a latencyTarget of 50 ms; call again later$/,
    );
    expect(error?.stack).not.toContain('\n    at ');
    await runAll(batcher);
  });

  it('[15.2] The time to retry is that by which the call would be late', async () => {
    const batcher = await busy({ latencyTarget: 4000 }, () => 2000);

    // The running batch and its own take 4000 ms, and overruns 1414.
    expect(refusalOf(() => batcher.call('a'))?.retryAfter).toBe(2);
    await runAll(batcher);
  });

  it('[15.2] The time to retry after a long queue is that of the queue', async () => {
    const batcher = await busy({ latencyTarget: 100 }, () => 10);
    batcher.targets[0]!.change({ unavailable: new Error('restarting') });
    batcher.call('a', 900);
    batcher.targets[0]!.change({ unavailable: undefined });

    // 112 full batches ahead take 1120 ms, and its own 10; and then what they may take longer.
    expect(refusalOf(() => batcher.call('b'))?.message).toMatch(/about 1[12]\d\d ms/);
    expect(refusalOf(() => batcher.call('b'))?.retryAfter).toBe(2);
    await runAll(batcher);
  });

  it('[15.2] A call that finds an idle partition and an empty queue is admitted, whatever its run takes', async () => {
    const batcher = trained({}, () => 1000);

    expect(refusalOf(() => batcher.call('a'))).toBeUndefined();
    expect(refusalOf(() => batcher.call('b'))).toBeInstanceOf(OverloadedError);
    await runAll(batcher);
  });

  it('[15.2] No call is refused before eight batches have run', async () => {
    const batcher = new HeldBatcher({ batchSize: 8, latencyTarget: 50 });
    for (let batch = 0; batch < 8; batch++) {
      batcher.call('a');
      await later();
      expect(refusalOf(() => batcher.call('b').leave())).toBeUndefined();
      await later(1000);
      batcher.finishBatch();
      await later();
    }

    batcher.call('a');
    await later();
    expect(refusalOf(() => batcher.call('b'))).toBeInstanceOf(OverloadedError);
    await runAll(batcher);
  });

  it('[15.2] No call is refused while no partition works, since its return cannot be predicted', async () => {
    const batcher = await busy();
    batcher.targets[0]!.change({ unavailable: new Error('restarting') });

    expect(refusalOf(() => batcher.call('a', 100))).toBeUndefined();
    batcher.targets[0]!.change({ unavailable: undefined });
    await runAll(batcher);
  });

  it('[15.2] A call of many rows is admitted by the batch of its last row', async () => {
    const batcher = await busy({ latencyTarget: 80 });
    const { batchSize: size } = batcher.targetOf(batcher.lane().limits)!;

    expect(size).toBe(8);
    expect(refusalOf(() => batcher.call('a', 17))).toBeInstanceOf(OverloadedError);
    expect(refusalOf(() => batcher.call('a', 8))).toBeUndefined();
    await runAll(batcher);
  });

  it('[15.2] A call of a higher priority is admitted by the rows ahead of it alone', async () => {
    const batcher = await busy();
    batcher.call('a', 8);

    expect(refusalOf(() => batcher.ask('b'))).toBeInstanceOf(OverloadedError);
    expect(refusalOf(() => batcher.ask('b', { priority: 1 }))).toBeUndefined();
    await runAll(batcher);
  });

  it('[15.2] Rows of other keys that run before a call count, in their own batches', async () => {
    const batcher = await busy();
    const other = batcher.lane('other', { latencyTarget: undefined });
    for (let batch = 0; batch < 8; batch++) {
      batcher.learn({ lane: other, size: 8 }, 30);
    }
    batcher.call('x', 1, 'other');

    expect(refusalOf(() => batcher.call('a'))).toBeInstanceOf(OverloadedError);
    expect(refusalOf(() => batcher.call('y', 500, 'other'))).toBeUndefined();
    await runAll(batcher);
  });

  it('[15.3] A row of an idle serving runs at once, and waits for no others', async () => {
    const batcher = trained();

    batcher.call('a');
    await later();

    expect(batcher.running).toEqual(['0: a0']);
    await runAll(batcher);
  });

  it('[15.3] The size of a batch leaves time for its run and for the rows to arrive', async () => {
    const batcher = trained();
    batcher.call('a');
    // 1.5 times 20 ms for five rows, and 20 ms for the batch before it.
    expect(sizeOf(batcher)).toBe(5);

    for (let ms = 0; ms < 4000; ms++) {
      refusalOf(() => batcher.call('b', 2));
      await later(1);
    }
    // 1.5 times 24 ms for seven rows, and 3.5 ms until seven have arrived.
    expect(sizeOf(batcher)).toBe(8);
    expect(batcher.targetOf(batcher.lane().limits)?.expected).toBeCloseTo(26);
    await runAll(batcher);
  });

  it('[15.3] A batch has one row where a single run takes longer than the target', async () => {
    const batcher = await busy({}, (rows) => 60 + rows);

    expect(sizeOf(batcher)).toBe(1);
    await runAll(batcher);
  });

  it('[15.3] The batch size is the limit, also when it is changed', async () => {
    const batcher = await busy({ latencyTarget: 100 });
    batcher.lane('lane', { batchSize: 3 });

    batcher.call('a', 4);

    expect(await runAll(batcher)).toEqual(['a0 a1 a2', 'a3']);
    expect(batcher.records.map(({ batchSize, reason }) => `${batchSize} ${reason}`)).toEqual([
      '8 idle',
      '3 full',
      '3 idle',
    ]);
  });

  it('[15.3] [2.4] With allowed sizes, the time of a batch is that of its padded size', async () => {
    const batcher = trained({ allowedSizes: [1, 4, 8] });

    batcher.call('a');

    // Five rows would run as eight: 1.5 times 26 ms, and 26 ms for the batch before it.
    expect(sizeOf(batcher)).toBe(4);
    await runAll(batcher);
  });

  it('[15.3] Rows of one call that must run in one batch do so, also when the size is smaller', async () => {
    const batcher = trained();
    batcher.callWhole('a', 7);
    await later();

    expect(batcher.running).toEqual(['0: a0 a1 a2 a3 a4 a5 a6']);
    await runAll(batcher);
  });

  it('[15.4] A batch reports its expected time once it is known', async () => {
    const unknown = new HeldBatcher();
    unknown.call('a');
    await runAll(unknown);
    const batcher = trained({ latencyTarget: undefined });
    batcher.call('a', 3);
    await later();
    await runAll(batcher);

    expect(unknown.records[0]?.expected).toBeUndefined();
    expect(batcher.records[0]?.expected).toBeCloseTo(16);
  });

  it('[15.5] A single run of fifty times the expected time hardly changes what is expected', async () => {
    const batcher = trained();

    batcher.learn({ lane: batcher.lane(), size: 8 }, 50 * timeOf(8));
    batcher.call('a');
    await later();
    await runAll(batcher);

    expect(batcher.records[0]?.expected).toBeLessThan(2 * timeOf(1));
  });

  it('[15.5] Failed batches change neither the expected time nor the size', async () => {
    const batcher = trained();
    for (let batch = 0; batch < 20; batch++) {
      batcher.call('a');
      await later(500);
      batcher.finishBatch(0, { error: new Error('failed') });
      await later();
    }

    batcher.call('a');
    expect(sizeOf(batcher)).toBe(5);
    await runAll(batcher);
  });

  it('[15.2] [4.6] Each row is refused, or cancelled, or runs once in its order, whatever the load does', async () => {
    const step = fc.record({
      rows: fc.integer({ min: 1, max: 12 }),
      isWhole: fc.boolean(),
      leaves: fc.boolean(),
      pause: fc.constantFrom(0, 0, 1, 10),
      runTime: fc.constantFrom(undefined, 5, 40, 200),
      batchSize: fc.integer({ min: 1, max: 12 }),
    });
    await fc.assert(
      fc.asyncProperty(
        fc.array(step, { minLength: 1, maxLength: 40 }),
        fc.integer({ min: 1, max: 3 }),
        fc.integer({ min: 0, max: 1 }),
        async (steps, partitions, prefetch) => {
          const batcher = trained({ partitions, prefetch, batchSize: 12 });
          const expected: string[] = [];
          let call = 0;
          for (const { rows, isWhole, leaves, pause, runTime, batchSize } of steps) {
            const name = `${call++}.`;
            const { limits } = batcher.lane('lane', { batchSize });
            const whole = isWhole && rows <= limits.batchSize;
            const error = refusalOf(() => {
              const request = batcher.ask(name, { size: rows, whole });
              if (leaves) {
                request.queue = batcher;
                request.leave();
              } else {
                expected.push(...Array.from({ length: rows }, (_, row) => `${name}${row}`));
              }
            });
            expect(error ?? new OverloadedError()).toBeInstanceOf(OverloadedError);
            await later(pause);
            if (runTime !== undefined && batcher.running.length > 0) {
              await later(runTime);
              batcher.finishBatch(Number.parseInt(batcher.running[0]!));
            }
          }
          await runAll(batcher);

          const ran = batcher.started.flatMap(({ parts }) => namesOf(parts).split(' '));
          expect(ran).toEqual(expected);
          expect(batcher.started.every(({ rows }) => rows <= 12)).toBe(true);
          expect(batcher.depth).toBe(0);
        },
      ),
    );
  });
});
