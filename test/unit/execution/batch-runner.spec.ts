import { Batch, BatchFailedError, InvalidBatchError, Tensor } from 'nestjs-serving';
import { outputEnd } from '../../../lib/core/execution/caller-side.js';
import { describe, expect, it } from '@jest/globals';
import type { Partition } from '../../../lib/core/partitions/partition.js';
import { BatchRunner } from '../../../lib/core/execution/batch-run.js';
import type { ServingLane } from '../../../lib/core/execution/lanes.js';
import { releaseOutput, ReplyRequest } from '../../../lib/core/execution/request.js';
import { EventHub } from '../../../lib/core/events/event-hub.js';

const lane: ServingLane = {
  key: 'default',
  origin: undefined,
  limits: { batchSize: 4, runSize: 4, batchTimeout: 0 },
};

/** A runner with one partition, whose batches are idempotent. */
function runnerOn(partition: Partition): BatchRunner {
  const recovery = { idempotent: true, isolateFailures: true, retries: 2 };
  return new BatchRunner('pairs', recovery, { partitions: [partition] }, new EventHub());
}

/** A partition that returns every row and records its batches. */
function echo(): { partition: Partition; batches: unknown[] } {
  const batches: unknown[] = [];
  const run: Partition['run'] = async (batch) => {
    const rows = batch.consume() as unknown[];
    batches.push(rows);
    return { output: rows };
  };
  return { partition: { prefetch: 0, run, close: async () => {} }, batches };
}

describe('BatchRunner', () => {
  it('[6.1] [6.5] Rows that cannot be merged into one batch fail their callers, and dispatch does not reject', async () => {
    const { partition, batches } = echo();
    const requests = ['one', 'another'].map(
      (key) => new ReplyRequest(Batch.stack([key]).withKey(key), lane),
    );
    const parts = requests.map((request) => ({ request, offset: 0, count: 1 }));
    const replies = Promise.allSettled(requests.map(({ reply }) => reply));

    const outcome = await runnerOn(partition).dispatch({ lane, parts, size: 4, reason: 'idle' }, 0);

    const error = expect.any(BatchFailedError);
    expect(outcome).toEqual({ error });
    expect(await replies).toEqual([
      { status: 'rejected', reason: error },
      { status: 'rejected', reason: error },
    ]);
    expect(outcome.error).toMatchObject({
      message:
        'Serving "pairs": a batch of 2 rows failed: Cannot merge batches of different keys: "one" and "another"',
      cause: expect.any(InvalidBatchError),
    });
    expect(batches).toEqual([]);
  });

  it.each([
    ['collected', undefined],
    ['answered directly', outputEnd],
  ])(
    '[6.1] [W4] An output whose memory is gone when it is handed out fails its callers: %s',
    async (_, end) => {
      const data = new Float32Array(2);
      const output = new Tensor('float32', data, [2, 1]);
      const partition = { prefetch: 0, run: async () => ({ output }), close: async () => {} };
      const requests = [0, 1].map(
        () =>
          new ReplyRequest<unknown>(Batch.ofValues(['row']), lane, undefined, undefined, 0, end),
      );
      const parts = requests.map((request) => ({ request, offset: 0, count: 1 }));
      const replies = Promise.allSettled(requests.map(({ reply }) => reply));
      const outcome = await runnerOn(partition).dispatch(
        { lane, parts, size: 2, reason: 'full' },
        0,
      );

      structuredClone(data.buffer, { transfer: [data.buffer] });
      outcome.handOut!();

      const rejected = { status: 'rejected', reason: expect.any(BatchFailedError) };
      expect(await replies).toEqual([rejected, rejected]);
    },
  );

  it.each([
    { own: true, what: 'An output that the function gave away is passed on without a copy' },
    { own: false, what: 'An output that the function may write to again is copied' },
  ])('[W4] $what', async ({ own }) => {
    const memory = Float32Array.of(1, 2);
    const output = new Tensor('float32', memory, [2, 1]);
    const partition = { prefetch: 0, run: async () => ({ output, own }), close: async () => {} };
    const request = new ReplyRequest(Batch.stack(['a', 'b']), lane);
    const parts = [{ request, offset: 0, count: 2 }];

    const window = { lane, parts, size: 4, reason: 'idle' } as const;
    const outcome = await runnerOn(partition).dispatch(window, 0);
    outcome.handOut!();

    const { data } = releaseOutput((await request.reply).rows) as { data: Float32Array };
    expect(data).toEqual(memory);
    expect(data.buffer === memory.buffer).toBe(own);
  });
});
