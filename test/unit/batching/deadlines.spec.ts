import { describe, expect, it } from '@jest/globals';
import { DeadlineExceededError, DeadlineTooShortError } from 'nestjs-serving';
import { busyBatcher, runAll } from '../../fixtures/batching/busy-batcher.js';
import {
  HeldBatcher,
  type HeldBatcherOptions,
  type NamedRequest,
} from '../../fixtures/batching/held-batcher.js';
import { later, useVirtualTime } from '../../fixtures/async/virtual-time.js';

/** No timer answers late calls here, so rows expire when they are taken. */
describe('Batcher: deadlines', () => {
  useVirtualTime();

  it('[7.2] Rows whose deadline has passed leave their places in the batch to the rows behind them', async () => {
    const batcher = await busyBatcher();
    const late = [
      batcher.ask('a', { deadline: inMs(10), size: 2 }),
      batcher.ask('b', { deadline: inMs(9) }),
    ];
    const inTime = batcher.ask('c', { deadline: inMs(11) });
    batcher.ask('d', { size: 3 });
    await later(10);

    expect(await runAll(batcher)).toEqual(['c0 d0 d1', 'd2']);
    expect(late.map(({ error }) => error)).toEqual([
      expect.any(DeadlineExceededError),
      expect.any(DeadlineExceededError),
    ]);
    expect([inTime.error, batcher.depth]).toEqual([undefined, 0]);
  });

  it('[7.2] A window with nothing but late rows is skipped and starts no batch', async () => {
    const batcher = await busyBatcher({ partitions: 2 });
    batcher.ask('a', { deadline: inMs(5), size: 3 }, 'left');
    batcher.ask('b', {}, 'right');
    await later(5);

    expect(await runAll(batcher)).toEqual(['b0']);
    expect(batcher.started).toHaveLength(3);
  });

  it('[7.2] A row whose deadline passes in an open window is not in the batch of that window', async () => {
    const batcher = new HeldBatcher({ batchTimeout: 20 });
    batcher.ask('a', { deadline: inMs(15) });
    batcher.ask('b');
    await later(20);

    expect(batcher.running).toEqual(['0: b0']);
    expect(await runAll(batcher)).toEqual(['b0']);
  });

  it('[7.2] After the deadline of a split request its running rows finish and no more of its rows run', async () => {
    const batcher = new HeldBatcher();
    const request = batcher.ask('a', { deadline: inMs(10), size: 7 });
    await later(10);

    expect(await runAll(batcher)).toEqual(['a0 a1 a2']);
    expect(request.error).toBeInstanceOf(DeadlineExceededError);
    expect(batcher.depth).toBe(0);
  });

  it('[7.2] A row whose deadline has passed is not retried', async () => {
    const batcher = await busyBatcher();
    const requests = [10, 30].map((ms) => batcher.ask(`in ${ms}-`, { deadline: inMs(ms) }));
    batcher.finishBatch();
    await later(20);
    const retries = requests.map((request) => ({ parts: [{ request, offset: 0, count: 1 }] }));

    batcher.finishBatch(0, { error: new Error('failed'), retries });
    await later();

    expect(batcher.running).toEqual(['0: in 30-0']);
    expect(requests[0]!.error).toBeInstanceOf(DeadlineExceededError);
    await runAll(batcher);
    expect(batcher.depth).toBe(0);
  });

  it('[7.2] [7.3] No row in time is lost when many rows are late at once', async () => {
    const batcher = await busyBatcher({ batchSize: 4 });
    Array.from({ length: 200 }, (_, i) => batcher.ask(`late ${i}.`, { deadline: inMs(10) }));
    const stay = Array.from({ length: 6 }, (_, i) => batcher.ask(`s${i}.`));
    await later(10);

    expect((await runAll(batcher)).flatMap((rows) => rows.split(' '))).toEqual(
      stay.map(({ name }) => `${name}0`),
    );
    expect(batcher.depth).toBe(0);
  });

  it('[7.1] A call that cannot be answered in time is refused once batch times are known', async () => {
    const batcher = await trained(100);
    batcher.ask('a', { size: 9 });
    await later();

    // The running batch takes 100 ms, queued ones another 200, and its own batch 100; and then what
    // they may take longer.
    expect(() => batcher.ask('b', { deadline: inMs(440) })).toThrow(DeadlineTooShortError);
    expect(() => batcher.ask('b', { deadline: inMs(501) })).not.toThrow();
    await later(60);
    expect(() => batcher.ask('c', { deadline: inMs(440) })).not.toThrow();
    await runAll(batcher);
  });

  it('[7.1] The expected time of a call counts batches that were handed ahead', async () => {
    const batcher = await trained(100, { prefetch: 1 });
    batcher.ask('a', { size: 6 });
    await later();
    expect(batcher.running).toHaveLength(2);

    // Both batches and its own take 300 ms, and may take longer.
    expect(() => batcher.ask('b', { deadline: inMs(330) })).toThrow(DeadlineTooShortError);
    expect(() => batcher.ask('b', { deadline: inMs(400) })).not.toThrow();
    await runAll(batcher);
  });

  it('[7.1] Failed batches, which may be faster, do not change the expected batch time', async () => {
    const batcher = await trained(100);
    for (let i = 0; i < 20; i++) {
      batcher.ask('a', { size: 3 });
      await later();
      batcher.finishBatch(0, { error: new Error('failed') });
      await later();
    }
    batcher.ask('a', { size: 3 });
    await later();

    expect(() => batcher.ask('b', { deadline: inMs(199) })).toThrow(DeadlineTooShortError);
    await runAll(batcher);
  });

  it('[7.1] [2.4] The batch time is learned for the rows of the padded batch', async () => {
    const batcher = new HeldBatcher({ batchSize: 4 });
    for (let i = 0; i < 8; i++) {
      batcher.ask('a');
      await later(100);
      batcher.finishBatch(0, { padding: 1 });
      await later();
    }
    batcher.ask('a', { size: 8 });
    await later();

    // Four rows were not tried, and may take 100 as two rows do: the running ones, the queued ones,
    // and its own.
    expect(() => batcher.ask('b', { deadline: inMs(290) })).toThrow(DeadlineTooShortError);
    expect(() => batcher.ask('b', { deadline: inMs(500) })).not.toThrow();
    await runAll(batcher);
  });

  it('[7.2] [7.5] A row that is expected to be late is failed in favour of rows that are not', async () => {
    const batcher = await trained(100);
    batcher.ask('a', { size: 3 });
    await later();
    const late = batcher.ask('late', { deadline: inMs(251) });
    batcher.ask('b', { deadline: inMs(300) });
    // The running batch takes longer than expected.
    await later(155);

    expect(await runAll(batcher)).toEqual(['a0 a1 a2', 'b0']);
    expect(late.error).toBeInstanceOf(DeadlineExceededError);
  });

  it('[7.2] [A1] No row is failed in favour of others for the time of a size that was not tried', async () => {
    const batcher = new HeldBatcher({ batchSize: 4 });
    await runAlone(batcher, 100);
    batcher.ask('a', { size: 2 });
    const urgent = batcher.ask('b', { deadline: inMs(150) });
    batcher.ask('c');

    expect(await runAll(batcher)).toEqual(['a0 a1 b0 c0']);
    expect(urgent.error).toBeUndefined();
  });

  it('[7.1] An idle batcher never refuses a call for its deadline', async () => {
    const batcher = await trained(100);

    expect(() => batcher.ask('a', { deadline: inMs(1) })).not.toThrow();
    await runAll(batcher);
  });

  it('[7.1] A call refused for lack of room gets a time to retry from the learned batch times', async () => {
    const batcher = await trained(2900, { maxRows: 6 });
    batcher.ask('a', { size: 3 });
    await later();
    batcher.ask('a', { size: 6 });

    const refusal = refusalOf(() => batcher.ask('b', { size: 4 }));

    expect(refusal).toMatchObject({ code: 'SERVING_OVERLOADED', retryAfter: 4 });
    await runAll(batcher);
  });
});

const inMs = (ms: number): number => performance.now() + ms;

function refusalOf(ask: () => NamedRequest): unknown {
  try {
    return ask();
  } catch (error) {
    return error;
  }
}

/** Runs eight batches of one row, of this many milliseconds. */
async function runAlone(batcher: HeldBatcher, ms: number): Promise<void> {
  for (let i = 0; i < 8; i++) {
    batcher.ask('alone');
    await later(ms);
    batcher.finishBatch();
    await later();
  }
}

/** An idle batcher that has run eight full batches of this many milliseconds. */
async function trained(ms: number, options: HeldBatcherOptions = {}): Promise<HeldBatcher> {
  const batcher = new HeldBatcher(options);
  for (let i = 0; i < 8; i++) {
    batcher.ask('training', { size: 3 });
    await later(ms);
    batcher.finishBatch();
    await later();
  }
  return batcher;
}
