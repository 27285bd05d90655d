import { describe, expect, it, jest } from '@jest/globals';
import { type PartitionStatus, RunTimeoutError, ServingUnavailableError } from 'nestjs-serving';
import { NotStartedError } from '../../../../lib/core/partitions/partition.js';
import { SupervisedPartition } from '../../../../lib/core/partitions/worker/supervised.partition.js';
import { TimedPartition } from '../../../../lib/core/partitions/worker/timed.partition.js';
import { runRows, silent } from '../../../fixtures/batching/batches.js';
import { FakeProcess, FakeWorker } from '../../../fixtures/partitions/fake-worker.js';
import { later, timers, turn, useVirtualTime } from '../../../fixtures/async/virtual-time.js';

/** A partition with a run timeout of 50 ms, and its changes. */
function timed(worker: FakeWorker): { partition: TimedPartition; seen: PartitionStatus[] } {
  const seen: PartitionStatus[] = [];
  const supervised = new SupervisedPartition(
    1,
    worker,
    async () => new FakeProcess(),
    { restartDelay: 100, maxRestarts: 2, restartTimeout: 5000 },
    () => 1,
  );
  const partition = new TimedPartition(1, supervised, 50);
  partition.onChange(() => seen.push(partition.status));
  return { partition, seen };
}

/** The outcome of the promise until now. */
function outcomeOf(promise: Promise<unknown>): { result?: unknown; error?: unknown } {
  const outcome: { result?: unknown; error?: unknown } = {};
  promise.then(
    (result) => (outcome.result = result),
    (error: unknown) => (outcome.error = error),
  );
  return outcome;
}

describe('A partition with a run timeout', () => {
  useVirtualTime();

  it('[5.6] Batches that end in time run as without a timeout', async () => {
    const worker = new FakeWorker();
    const { partition, seen } = timed(worker);

    const outcome = outcomeOf(runRows(partition, ['a']));
    await later(49);
    worker.batches[0]!.finish(['A']);
    await turn();
    const failing = outcomeOf(runRows(partition, ['b']));
    worker.batches[0]!.fail(new RangeError('no'));
    await later(1000);

    expect([outcome.result, failing.error, seen, timers()]).toEqual([
      ['A'],
      new RangeError('no'),
      [],
      0,
    ]);
    expect([partition.prefetch, partition.lost, partition.unavailable]).toEqual([
      1,
      undefined,
      undefined,
    ]);
    expect(partition.status).toEqual({ state: 'up', restarts: 0 });
  });

  it('[E7] A timer that is late waits for as long as it was, and at most for the timeout', async () => {
    const worker = new FakeWorker();
    const { partition } = timed(worker);
    const outcome = outcomeOf(runRows(partition, ['a']));
    await later(49);
    // The clock goes on while the thread is busy, and its timers wait.
    const busy = jest.spyOn(performance, 'now');
    const began = performance.now();
    busy.mockImplementation(() => began + 31);
    await later(1);
    busy.mockRestore();
    await later(29);
    expect(outcome).toEqual({});
    await later(10);
    expect(outcome).toEqual({ error: expect.any(RunTimeoutError) });
    worker.batches[0]!.finish(['A']);
    await partition.close();
  });

  it('[5.6] Changes of the worker are passed on', async () => {
    const worker = new FakeWorker();
    const { partition, seen } = timed(worker);

    worker.die('out of memory');
    await turn();

    expect(seen).toMatchObject([{ state: 'restarting', restarts: 0 }]);
    expect(partition.unavailable).toMatchObject({
      message: 'Partition 1 is being restarted: out of memory',
    });
    await partition.close();
  });

  it('[5.6] The timeout of a batch that was handed ahead counts from the end of the batch before it', async () => {
    const worker = new FakeWorker();
    const { partition } = timed(worker);

    const outcomes = ['first', 'ahead'].map((row) => outcomeOf(runRows(partition, [row])));
    await later(40);
    worker.batches[0]!.finish(['FIRST']);
    await later(40);
    expect(outcomes[1]).toEqual({});
    worker.batches[0]!.finish(['AHEAD']);
    await turn();

    expect(outcomes).toEqual([{ result: ['FIRST'] }, { result: ['AHEAD'] }]);
  });

  it('[5.6] A batch that hangs fails its callers, revokes the batch behind it, and blocks the partition until it returns', async () => {
    const worker = new FakeWorker();
    const { partition, seen } = timed(worker);

    const outcomes = [['a', 'b', 'c'], ['ahead']].map((rows) =>
      outcomeOf(runRows(partition, rows)),
    );
    await later(49);
    expect([outcomes, seen]).toEqual([[{}, {}], []]);
    await later(1);

    const facts = 'Partition 1 has run a batch of 3 rows for over 50 ms';
    expect(outcomes).toEqual([
      {
        error: new RunTimeoutError(
          `${facts}; raise recovery.runTimeout if batches may take so long`,
        ),
      },
      { error: expect.any(NotStartedError) },
    ]);
    expect(partition.lost).toBeInstanceOf(ServingUnavailableError);
    expect(partition.lost).toMatchObject({
      message: `${facts}, and takes no other until that returns`,
      retryAfter: 1,
    });
    const hung = { state: 'hung', restarts: 0, reason: partition.lost!.message };
    expect([partition.status, seen]).toEqual([hung, [hung]]);
    await expect(runRows(partition, ['early'])).rejects.toBe(partition.lost);
    expect(worker.batches.map(({ rows }) => rows)).toEqual([['a', 'b', 'c']]);

    worker.batches[0]!.finish(['A', 'B', 'C']);
    await turn();

    const up = { state: 'up', restarts: 0 };
    expect([partition.lost, partition.status, seen, timers()]).toEqual([
      undefined,
      up,
      [hung, up],
      0,
    ]);
    const next = outcomeOf(runRows(partition, ['next']));
    worker.batches[0]!.finish(['NEXT']);
    await turn();
    expect(next).toEqual({ result: ['NEXT'] });
  });

  it('[5.6] The partition is up again when the batch that hung has failed', async () => {
    const worker = new FakeWorker();
    const { partition, seen } = timed(worker);

    const outcome = outcomeOf(runRows(partition, ['a']));
    await later(50);
    worker.batches[0]!.fail(new Error('too late'));
    await turn();

    expect([outcome.error, seen.map(({ state }) => state)]).toEqual([
      expect.any(RunTimeoutError),
      ['hung', 'up'],
    ]);
  });

  it('[5.6] The partition restarts when its worker ends while a batch hangs', async () => {
    const worker = new FakeWorker();
    const { partition, seen } = timed(worker);

    outcomeOf(runRows(partition, ['a']));
    await later(50);
    worker.die('out of memory');
    await later(100);

    expect(seen.map(({ state }) => state)).toEqual(['hung', 'restarting', 'up']);
    expect(partition.status).toEqual({ state: 'up', restarts: 1 });
  });

  it('[5.6] A process with a batch that hangs is killed and restarted', async () => {
    const worker = new FakeProcess();
    const { partition, seen } = timed(worker);

    const outcomes = [['a'], ['ahead']].map((rows) => outcomeOf(runRows(partition, rows)));
    await later(50);

    expect([worker.kills, outcomes]).toEqual([
      1,
      [
        {
          error: new RunTimeoutError(
            'Partition 1 has run a batch of 1 row for over 50 ms, and is restarted; raise recovery.runTimeout if batches may take so long',
          ),
        },
        { error: expect.any(NotStartedError) },
      ],
    ]);
    expect(partition.lost).toBeUndefined();
    await later(100);
    expect(seen).toMatchObject([{ state: 'restarting' }, { state: 'up', restarts: 1 }]);
    expect(timers()).toBe(0);
  });

  it('[5.6] Hooks and steps of a batch that hung are dropped', async () => {
    const worker = new FakeWorker();
    const { partition } = timed(worker);
    const received: unknown[] = [];
    const listener = {
      ...silent,
      hooks: ['score'],
      hook: (...event: unknown[]) => void received.push(event),
      step: (...event: unknown[]) => void received.push(event),
    };

    outcomeOf(runRows(partition, ['a'], listener));
    const inside = worker.batches[0]!.listener;
    inside.hook('score', [1], true);
    inside.step(['A'], 'metadata');
    expect([inside.hooks, inside.isWaiting(0)]).toEqual([['score'], true]);
    await later(50);
    inside.hook('score', [2], true);
    inside.step(['B'], 'metadata');

    expect(inside.isWaiting(0)).toBe(false);
    expect(received).toEqual([
      ['score', [1], true],
      [['A'], 'metadata'],
    ]);
    worker.batches[0]!.finish([]);
    await turn();
  });

  it('[5.6] [2.4] The warm-up has no timeout', async () => {
    const worker = new FakeWorker();
    const { partition, seen } = timed(worker);

    const warming = outcomeOf(
      partition.warmUp(async (runner) => expect(await runRows(runner, ['a'])).toEqual(['A'])),
    );
    await later(10_000);
    expect(warming).toEqual({});
    worker.batches[0]!.finish(['A']);
    await turn();

    expect([Object.keys(warming), seen]).toEqual([['result'], []]);
  });

  it('[5.6] A batch that could not be handed over leaves no timer', async () => {
    const worker = new FakeWorker();
    worker.run = () => {
      throw new TypeError('no such rows');
    };
    const { partition, seen } = timed(worker);

    await expect(runRows(partition, ['a'])).rejects.toThrow('no such rows');
    await later(1000);

    expect([seen, timers()]).toEqual([[], 0]);
  });

  it('[13.9] The timeout of a sequence counts from the last value of any row, and fails all of them', async () => {
    const worker = Object.assign(new FakeWorker(), { capacity: 2 });
    const { partition, seen } = timed(worker);
    const outcomes = ['a', 'b'].map((row) => outcomeOf(runRows(partition, [row])));
    const [first, second] = worker.batches;
    for (let step = 0; step < 5; step++) {
      await later(49);
      [first, second][step % 2]!.listener.step([step], undefined);
    }
    await later(49);
    expect([seen, outcomes]).toEqual([[], [{}, {}]]);

    await later(1);
    const message =
      'Partition 1 has run a step of 2 rows for over 50 ms; raise recovery.runTimeout if steps may ' +
      'take so long';
    expect(outcomes).toEqual([1, 2].map(() => ({ error: new RunTimeoutError(message) })));
    await turn();
    // The other row was revoked, and the step still runs.
    expect([worker.batches.length, partition.status.state]).toEqual([1, 'hung']);
    first!.finish([]);
    await turn();
    expect(partition.status.state).toBe('up');
    expect(timers()).toBe(0);
  });
});
