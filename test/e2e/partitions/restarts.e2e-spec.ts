import { existsSync, readFile } from 'node:fs';
import { mkdtemp, rm } from 'node:fs/promises';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { afterEach, describe, expect, it, jest } from '@jest/globals';
import {
  createServing,
  type LocalServing,
  PartitionLostError,
  RunTimeoutError,
  ServingClosedError,
  type ServingDefinition,
  ServingUnavailableError,
} from 'nestjs-serving';
import type { PartitionChangeEvent } from '../../../lib/core/events/serving-event.js';
import { filter, firstValueFrom } from 'rxjs';
import { forkChild } from '../../fixtures/partitions/fork-child.js';
import { useGates } from '../../fixtures/batching/gate.js';
import { until } from '../../fixtures/async/streams.js';
import { useServings } from '../../fixtures/serving/use-servings.js';
import { later, turn, useVirtualTime } from '../../fixtures/async/virtual-time.js';
import { worker } from '../../fixtures/partitions/worker.js';
import { log } from '../../../lib/core/log.js';

/** Memory that threads share with the test. */
const shared = (length = 1): Int32Array =>
  new Int32Array(new SharedArrayBuffer(length * Int32Array.BYTES_PER_ELEMENT));

/** A serving whose threads end on request and restart at once. */
function mortal(partition: object, options: Partial<ServingDefinition> = {}): ServingDefinition {
  const base = {
    name: 'mortal',
    model: { useFile: worker('mortal') },
    batchSize: 1,
    recovery: { restartDelay: 0 },
  };
  return { ...base, partitions: [{ starts: shared(), ...partition }], ...options };
}

const stateOf = (serving: LocalServing): string[] => serving.partitions().map(({ state }) => state);

/** Resolves when a partition goes into the state. */
const change = (
  serving: LocalServing,
  to: PartitionChangeEvent['state'],
): Promise<PartitionChangeEvent> =>
  firstValueFrom(serving.eventsOf('partition:change').pipe(filter(({ state }) => state === to)));

describe.each(['thread', 'process'] as const)('A run timeout in a %s', (isolation) => {
  const serve = useServings();

  it('[E7] ends no batch whose result is there, but the thread of the application was busy', async () => {
    const folder = await mkdtemp(join(tmpdir(), 'mark-'));
    const mark = join(folder, 'done');
    const serving = await serve({
      name: 'marking',
      model: { useFile: worker('marking'), isolation },
      partitions: [{ mark }],
      recovery: { runTimeout: 1_000 },
    });
    const call = serving.batchedRun('mark');
    // In a callback of I/O, as handlers of requests are: it is followed by timers, and then by input.
    await new Promise<void>((resolve) => {
      readFile('package.json', () => {
        const end = performance.now() + 1_500;
        const isDone = (): boolean => existsSync(mark) || performance.now() > end + 30_000;
        while (performance.now() < end || !isDone()) {
          // Busy.
        }
        resolve();
      });
    });

    expect(await call).toBe('mark');
    expect(serving.partitions()).toEqual([{ state: 'up', restarts: 0 }]);
    await rm(folder, { recursive: true });
  });
});

describe('A thread that ends', () => {
  const serve = useServings();

  afterEach(() => {
    jest.restoreAllMocks();
  });

  it('[5.6] A thread that ends is restarted, and calls in the meantime wait for it', async () => {
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

  it('[5.6] [12.3] The restart of a thread is reported with the reason, also when a start fails', async () => {
    const warnings = jest.spyOn(log, 'warn').mockReturnValue();
    const serving = await serve(mortal({ failing: [2] }));
    const seen: PartitionChangeEvent[] = [];
    serving.eventsOf('partition:change').subscribe((event) => seen.push(event));

    await serving.batchedRun('exits').catch(() => {});

    expect(await serving.batchedRun('a')).toEqual({ row: 'a', start: 3 });
    const ended = seen[0]!.reason;
    expect(ended).toMatch(/^Partition 0 is being restarted: The thread of partition 0 .*ended/);
    const failed = 'Partition 0 is being restarted: start 2 fails';
    const about = {
      type: 'partition:change',
      serving: 'mortal',
      version: '1',
      partition: 0,
    };
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

  it('[5.6] [2.4] A restarted thread is warmed up before it gets a batch', async () => {
    const begun = shared();
    const serving = await serve(mortal({ begun }, { warmUp: [0] }));
    const restarting = change(serving, 'restarting');

    await serving.batchedRun('exits').catch(() => {});
    await restarting;

    expect(Atomics.load(begun, 0)).toBe(1);
    expect(await serving.batchedRun('a')).toEqual({ row: 'a', start: 2 });
    expect(Atomics.load(begun, 0)).toBe(2);
  });

  it('[5.6] [FU75] Failed restarts open the circuit: calls fail at once until a start succeeds', async () => {
    const serving = await serve(
      mortal({ failing: [2] }, { recovery: { restartDelay: 0, maxRestarts: 1 } }),
    );
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
      message: `Serving "${serving.name}": ${reason}`,
      statusCode: 503,
      retryAfter: 30,
    });
    expect(serving.partitions()).toEqual([{ state: 'lost', restarts: 1, reason }]);
  });

  it('[5.6] [3.1] The thread that run() has opened before the start is restarted and reported', async () => {
    const warnings = jest.spyOn(log, 'warn').mockReturnValue();
    const serving = createServing(mortal({}));
    const up = change(serving, 'up');

    await expect(serving.run('exits')).rejects.toThrow(PartitionLostError);

    expect(await up).toMatchObject({ partition: 0, restarts: 1 });
    expect(await serving.run('a')).toEqual({ row: 'a', start: 2 });
    expect(warnings.mock.calls).toEqual([
      [expect.stringContaining('Serving "mortal": Partition 0 is being restarted')],
    ]);
    await serving.close();
  });

  it('[5.6] [4.6] Under load only the batches of lost threads fail, and no row is lost, doubled or mixed up', async () => {
    const rows = 600;
    const begun = shared(rows);
    const starts = shared();
    const options = { starts, begun };
    const serving = await serve(
      mortal({}, { batchSize: 4, queue: { maxRows: 10_000 }, partitions: [options, options] }),
    );
    const exits = 6;

    // A row with an exit ends the thread of its batch. Each other row counts its own runs.
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
    // At most the rows of its batch and of the batch that was handed ahead.
    expect(failed.length).toBeLessThanOrEqual(exits * 7);
    expect(Math.max(...begun)).toBe(1);
    expect(outcomes.every(({ row }, index) => row === 'failed' || begun[index] === 1)).toBe(true);
    await until(() => stateOf(serving).every((state) => state === 'up'));
    expect(Atomics.load(starts, 0)).toBe(2 + exits);
    expect(await serving.batchedRun('after')).toMatchObject({ row: 'after' });
  });

  it('[5.6] [9.3] A thread that ends while its serving closes is not restarted', async () => {
    const starts = shared();
    const serving = await serve(mortal({ starts }));

    const lost = serving.batchedRun('exits').catch((error: unknown) => error);
    await serving.close();

    expect(await lost).toBeInstanceOf(PartitionLostError);
    expect(stateOf(serving)).toEqual(['restarting']);
  });
});

describe('A thread that hangs', () => {
  // The gates open at the end of a test, before the test waits for the threads.
  const gate = useGates();
  const serve = useServings();

  it('[5.6] A thread that hangs fails its callers at once and runs nothing until it returns', async () => {
    const begun = shared(2);
    const serving = await serve(
      mortal({ begun }, { recovery: { restartDelay: 0, runTimeout: 1000 } }),
    );
    const held = gate();

    const hanging = serving.batchedRun(held.row);
    const ahead = serving.batchedRun(0);
    const queued = serving.batchedRun('queued');
    const hung = change(serving, 'hung');
    const replies = Promise.allSettled([hanging, ahead, queued]);
    await expect(hanging).rejects.toThrow(
      new RunTimeoutError(
        'Partition 0 has run a batch of 1 row for over 1000 ms; raise recovery.runTimeout if batches may take so long',
      ),
    );

    const reason =
      'Partition 0 has run a batch of 1 row for over 1000 ms, and takes no other until that returns';
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

  it('[5.6] A thread that hangs leaves the others at work', async () => {
    const starts = shared();
    const serving = await serve(
      mortal(
        {},
        { recovery: { restartDelay: 0, runTimeout: 1000 }, partitions: [{ starts }, { starts }] },
      ),
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

    it('[5.6] [4.6] A batch that was handed ahead to a thread that hangs is revoked and runs once on another', async () => {
      const begun = shared();
      const other = shared().fill(10);
      const partitions = [shared(), other].map((starts) => ({ starts, begun }));
      const serving = await serve(
        mortal({}, { recovery: { restartDelay: 0, runTimeout: 50 }, partitions }),
      );
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

  it('[5.6] [9.3] A thread that hangs delays neither shutdown beyond its limit nor the end of its process', async () => {
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
    model: { useFile: worker('dying'), isolation: 'process' },
    batchSize: 1,
    recovery: { restartDelay: 0 },
  } as const;

  it('[5.6] A process that was killed from outside is restarted', async () => {
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

  it('[5.6] A process that does not restart in time is killed, and lost after too many attempts', async () => {
    const serving = await serve<number>({
      ...dying,
      recovery: { restartDelay: 0, maxRestarts: 1, restartTimeout: 1 },
    });
    const lost = change(serving, 'lost');

    process.kill(await serving.batchedRun('which'), 'SIGKILL');

    expect(await lost).toMatchObject({
      restarts: 1,
      reason: expect.stringContaining('Partition 0 was not ready 1 ms after its restart'),
    });
    await expect(serving.batchedRun('which')).rejects.toThrow(ServingUnavailableError);
  });

  it('[5.6] A process that hangs is killed and restarted, and the batch handed ahead to it runs there', async () => {
    const serving = await serve<number>({
      ...dying,
      recovery: { restartDelay: 0, runTimeout: 200 },
    });
    const held = gate();
    const pid = await serving.batchedRun('which');

    const hanging = serving.batchedRun(held.row);
    const ahead = serving.batchedRun('which');

    await expect(hanging).rejects.toThrow(
      'Partition 0 has run a batch of 1 row for over 200 ms, and is restarted; raise recovery.runTimeout if batches may take so long',
    );
    expect(await ahead).not.toBe(pid);
    expect(() => process.kill(pid, 0)).toThrow('ESRCH');
    expect(serving.partitions()).toEqual([{ state: 'up', restarts: 1 }]);
  });

  it('[5.6] [9.3] A process that hangs neither delays shutdown beyond its limit nor survives it', async () => {
    const serving = await serve<number>({ ...dying, shutdown: { timeout: 100 } });
    const held = gate();
    const hanging = expect(serving.batchedRun(held.row)).rejects.toThrow(ServingClosedError);
    await held.entered();

    await serving.close();

    await hanging;
    await until(() => held.isLeft);
  });
});
