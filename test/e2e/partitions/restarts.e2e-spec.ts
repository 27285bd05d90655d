import { afterEach, describe, expect, it, jest } from '@jest/globals';
import { Logger } from '@nestjs/common';
import {
  type FileServingDefinition,
  type LocalServing,
  type PartitionChangeEvent,
  PartitionLostError,
  RunTimeoutError,
  ServingClosedError,
  ServingUnavailableError,
} from 'nestjs-serving';
import { filter, firstValueFrom } from 'rxjs';
import { forkChild } from '../../fixtures/partitions/fork-child.js';
import { useGates } from '../../fixtures/batching/gate.js';
import { until } from '../../fixtures/async/streams.js';
import { useServings } from '../../fixtures/serving/use-servings.js';
import { later, turn, useVirtualTime } from '../../fixtures/async/virtual-time.js';
import { worker } from '../../fixtures/partitions/worker.js';

/** Memory that threads share with the test. */
const shared = (length = 1): Int32Array =>
  new Int32Array(new SharedArrayBuffer(length * Int32Array.BYTES_PER_ELEMENT));

/** A serving whose threads are mortal, and start again at once. */
function mortal(
  partition: object,
  options: Partial<FileServingDefinition> = {},
): FileServingDefinition {
  const base = { name: 'mortal', useFile: worker('mortal'), batchSize: 1, restartDelay: 0 };
  return { ...base, partitions: [{ starts: shared(), ...partition }], ...options };
}

const stateOf = (serving: LocalServing): string[] => serving.partitions().map(({ state }) => state);

/** Resolves when a partition goes into the state. */
const change = (
  serving: LocalServing,
  to: PartitionChangeEvent['state'],
): Promise<PartitionChangeEvent> =>
  firstValueFrom(serving.eventsOf('partition:change').pipe(filter(({ state }) => state === to)));

describe('A thread that ends', () => {
  const serve = useServings();

  afterEach(() => {
    jest.restoreAllMocks();
  });

  it('[5.6] is started again, and calls that come meanwhile wait for it', async () => {
    const serving = await serve(mortal({}));
    expect(await serving.batchedRun('a')).toEqual({ row: 'a', start: 1 });

    const lost = serving.batchedRun('exits');
    const restarting = change(serving, 'restarting');
    await expect(lost).rejects.toThrow(PartitionLostError);
    await restarting;

    expect(await Promise.all(['b', 'c'].map((row) => serving.batchedRun(row)))).toEqual([
      { row: 'b', start: 2 },
      { row: 'c', start: 2 },
    ]);
    expect(serving.partitions()).toEqual([{ state: 'up', restarts: 1 }]);
  });

  it('[5.6] [12.3] is told of, with the reason in words, also when a start fails', async () => {
    const warnings = jest.spyOn(Logger.prototype, 'warn').mockReturnValue();
    const serving = await serve(mortal({ failing: [2] }));
    const seen: PartitionChangeEvent[] = [];
    serving.eventsOf('partition:change').subscribe((event) => seen.push(event));

    await serving.batchedRun('exits').catch(() => {});

    expect(await serving.batchedRun('a')).toEqual({ row: 'a', start: 3 });
    const ended = seen[0]!.reason;
    expect(ended).toMatch(/^Partition 0 is being restarted: The thread of partition 0 .*ended/);
    const failed = 'Partition 0 is being restarted: start 2 fails';
    const about = { type: 'partition:change', serving: 'mortal', kind: 'process', partition: 0 };
    expect(seen).toEqual([
      { ...about, state: 'restarting', restarts: 0, reason: ended },
      { ...about, state: 'restarting', restarts: 1, reason: failed },
      { ...about, state: 'up', restarts: 2 },
    ]);
    expect(warnings.mock.calls).toEqual([
      [`Serving "mortal": ${ended}`],
      [`Serving "mortal": ${failed}`],
    ]);
  });

  it('[5.6] [2.4] is warmed up again before it gets a batch', async () => {
    const begun = shared();
    const serving = await serve(mortal({ begun }, { warmUp: [0] }));
    const restarting = change(serving, 'restarting');

    await serving.batchedRun('exits').catch(() => {});
    await restarting;

    expect(Atomics.load(begun, 0)).toBe(1);
    expect(await serving.batchedRun('a')).toEqual({ row: 'a', start: 2 });
    expect(Atomics.load(begun, 0)).toBe(2);
  });

  it('[5.6] opens the circuit when its restarts fail: what waits for it fails, calls fail at once, and one that works closes it', async () => {
    const serving = await serve(mortal({ failing: [2] }, { maxRestarts: 1 }));
    const lost = change(serving, 'lost');

    const dying = serving.batchedRun('exits').catch((error: unknown) => error);
    await change(serving, 'restarting');
    const waiting = serving.batchedRun('waiting');
    await expect(waiting).rejects.toThrow(ServingUnavailableError);

    const reason =
      'Partition 0 has failed 2 times in a row, and is tried again every 30 s: start 2 fails';
    expect(await dying).toBeInstanceOf(PartitionLostError);
    expect(await lost).toMatchObject({ restarts: 1, reason });
    await expect(serving.batchedRun('late')).rejects.toMatchObject({
      message: reason,
      statusCode: 503,
      retryAfter: 30,
    });
    expect(serving.partitions()).toEqual([{ state: 'lost', restarts: 1, reason }]);
  });

  it('[5.6] [3.1] is started again also for `run`, which is told as such', async () => {
    const warnings = jest.spyOn(Logger.prototype, 'warn').mockReturnValue();
    const serving = await serve(mortal({}));
    const up = change(serving, 'up');

    await expect(serving.run('exits')).rejects.toThrow(PartitionLostError);

    expect(await up).toMatchObject({ kind: 'inline', partition: 0, restarts: 1 });
    expect(await serving.run('a')).toEqual({ row: 'a', start: 3 });
    expect(serving.partitions()).toEqual([{ state: 'up', restarts: 0 }]);
    expect(warnings.mock.calls).toEqual([
      [expect.stringContaining('Serving "mortal", for run(): Partition 0 is being restarted')],
    ]);
  });

  it('[5.6] [4.6] under load: only the batches of dead threads fail, and no row is lost, doubled or mixed up', async () => {
    const rows = 600;
    const begun = shared(rows);
    const starts = shared();
    const options = { starts, begun };
    const serving = await serve(
      mortal({}, { batchSize: 4, maxQueue: 10_000, partitions: [options, options] }),
    );
    const exits = 6;

    // The thread of its batch dies with each row that says so; of the others each is its own
    // witness.
    const replies: Promise<{ row: unknown; error?: unknown }>[] = [];
    for (let row = 0; row < rows; row++) {
      const reply = serving.batchedRun(row) as Promise<{ row: unknown }>;
      replies.push(reply.catch((error: unknown) => ({ row: 'failed', error })));
      if (row % 100 === 50) {
        serving.batchedRun('exits').catch(() => {});
      }
      if (row % 20 === 0) {
        await turn();
      }
    }
    const outcomes = await Promise.all(replies);

    const failed = outcomes.filter(({ row }) => row === 'failed');
    outcomes.forEach(({ row }, index) => expect([index, 'failed']).toContain(row));
    failed.forEach(({ error }) => expect(error).toBeInstanceOf(PartitionLostError));
    // At most what ran with it, and the batch that was handed ahead.
    expect(failed.length).toBeLessThanOrEqual(exits * 7);
    expect(Math.max(...begun)).toBe(1);
    expect(outcomes.every(({ row }, index) => row === 'failed' || begun[index] === 1)).toBe(true);
    await until(() => stateOf(serving).every((state) => state === 'up'));
    expect(Atomics.load(starts, 0)).toBe(2 + exits);
    expect(await serving.batchedRun('after')).toMatchObject({ row: 'after' });
  });

  it('[5.6] [9.3] is not started again once its serving closes', async () => {
    const starts = shared();
    const serving = await serve(mortal({ starts }));

    const lost = serving.batchedRun('exits').catch((error: unknown) => error);
    await serving.close();

    expect(await lost).toBeInstanceOf(PartitionLostError);
    expect(stateOf(serving)).toEqual(['restarting']);
  });
});

describe('A thread that hangs', () => {
  // They open at the end of a test, before the threads are waited for.
  const gate = useGates();
  const serve = useServings();

  it('[5.6] fails its callers at once, and runs nothing until it returns', async () => {
    const begun = shared(2);
    const serving = await serve(mortal({ begun }, { runTimeout: 50 }));
    const held = gate();

    const hanging = serving.batchedRun(held.row);
    const ahead = serving.batchedRun(0);
    const queued = serving.batchedRun('queued');
    const hung = change(serving, 'hung');
    const replies = Promise.allSettled([hanging, ahead, queued]);
    await expect(hanging).rejects.toThrow(
      new RunTimeoutError(
        'Partition 0 has run a batch of 1 rows for over 50 ms; raise runTimeout if batches may take so long',
      ),
    );

    const reason =
      'Partition 0 has run a batch of 1 rows for over 50 ms, and takes no other until that returns';
    expect(await hung).toMatchObject({ reason });
    expect(serving.partitions()).toEqual([{ state: 'hung', restarts: 0, reason }]);
    expect((await replies).slice(1)).toEqual([
      { status: 'rejected', reason: expect.any(ServingUnavailableError) },
      { status: 'rejected', reason: expect.any(ServingUnavailableError) },
    ]);
    await expect(serving.batchedRun('early')).rejects.toThrow(reason);

    const up = change(serving, 'up');
    held.open();
    await up;

    expect(await serving.batchedRun(1)).toEqual({ row: 1, start: 1 });
    expect([...begun]).toEqual([0, 1]);
  });

  it('[5.6] leaves the others at work', async () => {
    const starts = shared();
    const serving = await serve(
      mortal({}, { runTimeout: 50, partitions: [{ starts }, { starts }] }),
    );
    const held = gate();

    const hanging = serving.batchedRun(held.row);
    await expect(hanging).rejects.toThrow(RunTimeoutError);
    const replies = await Promise.all([1, 2, 3].map((row) => serving.batchedRun(row)));

    expect(replies).toMatchObject([{ row: 1 }, { row: 2 }, { row: 3 }]);
    expect(stateOf(serving).toSorted()).toEqual(['hung', 'up']);
  });

  describe('while another one is busy', () => {
    useVirtualTime();

    it('[5.6] [4.6] gives back what had been handed ahead to it, which runs there, and once', async () => {
      const begun = shared();
      const other = shared().fill(10);
      const partitions = [shared(), other].map((starts) => ({ starts, begun }));
      const serving = await serve(mortal({}, { runTimeout: 50, partitions }));
      const [hanging, busy] = [gate(), gate()];

      const hung = expect(serving.batchedRun(hanging.row)).rejects.toThrow(RunTimeoutError);
      await hanging.entered();
      await later(30);
      const running = serving.batchedRun(busy.row);
      await busy.entered();
      const ahead = serving.batchedRun(0);
      await later(20);
      await hung;
      busy.open();

      expect(await Promise.all([running, ahead])).toMatchObject([
        { start: 11 },
        { row: 0, start: 11 },
      ]);
      const up = change(serving, 'up');
      hanging.open();
      await up;
      expect(await serving.batchedRun('after')).toMatchObject({ row: 'after' });
      expect([...begun]).toEqual([1]);
    });
  });

  it('[5.6] [9.3] holds up neither shutdown for longer than `shutdown` nor the end of its process', async () => {
    const { code, signal, messages } = await forkChild('hung-thread');

    expect({ code, signal, messages }).toEqual({
      code: 0,
      signal: null,
      messages: ['SERVING_RUN_TIMEOUT', 'hung', 'closed'],
    });
  });
});

describe('A process that ends', () => {
  const gate = useGates();
  const serve = useServings();
  const dying = {
    name: 'dying',
    useFile: worker('dying'),
    isolation: 'process',
    batchSize: 1,
    restartDelay: 0,
  } as const;

  it('[5.6] is started again after a kill from outside', async () => {
    const serving = await serve<number>(dying);
    const pid = await serving.batchedRun('which');
    const restarting = change(serving, 'restarting');

    process.kill(pid, 'SIGKILL');

    expect(await restarting).toMatchObject({
      reason: expect.stringContaining('The process of partition 0 was killed by SIGKILL'),
    });
    const another = await serving.batchedRun('which');
    expect(another).not.toBe(pid);
    expect(serving.partitions()).toEqual([{ state: 'up', restarts: 1 }]);
  });

  it('[5.6] is killed when it does not come up again in time, and lost when that goes on', async () => {
    const serving = await serve<number>({ ...dying, maxRestarts: 1, restartTimeout: 1 });
    const lost = change(serving, 'lost');

    process.kill(await serving.batchedRun('which'), 'SIGKILL');

    expect(await lost).toMatchObject({
      restarts: 1,
      reason: expect.stringContaining('Partition 0 was not ready 1 ms after its restart'),
    });
    await expect(serving.batchedRun('which')).rejects.toThrow(ServingUnavailableError);
  });

  it('[5.6] is killed and started again when it hangs, and what had been handed ahead to it runs there', async () => {
    const serving = await serve<number>({ ...dying, runTimeout: 200 });
    const held = gate();
    const pid = await serving.batchedRun('which');

    const hanging = serving.batchedRun(held.row);
    const ahead = serving.batchedRun('which');

    await expect(hanging).rejects.toThrow(
      'Partition 0 has run a batch of 1 rows for over 200 ms, and is restarted; raise runTimeout if batches may take so long',
    );
    expect(await ahead).not.toBe(pid);
    expect(() => process.kill(pid, 0)).toThrow('ESRCH');
    expect(serving.partitions()).toEqual([{ state: 'up', restarts: 1 }]);
  });

  it('[5.6] [9.3] does not hold up shutdown for longer than `shutdown`, nor survive it', async () => {
    const serving = await serve<number>({ ...dying, drainTimeout: 100 });
    const held = gate();
    const hanging = expect(serving.batchedRun(held.row)).rejects.toThrow(ServingClosedError);
    await held.entered();

    await serving.close();

    await hanging;
    await until(() => held.isLeft);
  });
});
