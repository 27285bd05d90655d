import { describe, expect, it } from '@jest/globals';
import { PartitionLostError, type PartitionStatus, ServingUnavailableError } from 'nestjs-serving';
import { NotStartedError, type Partition } from '../../../../lib/core/partitions/partition.js';
import {
  SupervisedPartition,
  type Supervision,
} from '../../../../lib/core/partitions/worker/supervised.partition.js';
import { runRows } from '../../../fixtures/batching/batches.js';
import { FakeProcess, FakeWorker } from '../../../fixtures/partitions/fake-worker.js';
import { later, timers, turn, useVirtualTime } from '../../../fixtures/async/virtual-time.js';

/** A partition, its workers and its changes. */
class Scene {
  readonly workers: FakeWorker[];
  readonly seen: PartitionStatus[] = [];
  /** The outcome of the next start. */
  next: (end: AbortSignal) => Promise<FakeWorker> = async () => new FakeWorker();
  readonly partition: SupervisedPartition;

  constructor(supervision: Partial<Supervision> = {}, random = () => 1, first = new FakeWorker()) {
    this.workers = [first];
    this.partition = new SupervisedPartition(
      3,
      this.workers[0]!,
      async (end) => {
        const worker = await this.next(end);
        this.workers.push(worker);
        return worker;
      },
      { restartDelay: 100, maxRestarts: 2, restartTimeout: 5000, ...supervision },
      random,
    );
    this.partition.onChange(() => this.seen.push(this.partition.status));
  }

  get worker(): FakeWorker {
    return this.workers.at(-1)!;
  }

  get states(): string[] {
    return this.seen.map(({ state }) => state);
  }

  async die(reason = 'out of memory'): Promise<void> {
    this.worker.die(reason);
    await turn();
  }

  /** Runs a batch to its end. */
  async serve(): Promise<unknown> {
    const output = runRows(this.partition, ['a']);
    this.worker.batches[0]!.finish(['A']);
    return output;
  }
}

const broken = () => Promise.reject(new Error('no such file'));

/** A start that hangs until it is killed. */
const hanging = (end: AbortSignal) =>
  new Promise<never>((_, reject) =>
    end.addEventListener('abort', () => reject(new Error('killed'))),
  );

const tooLate = 'Partition 3 was not ready 5000 ms after its restart';

describe('SupervisedPartition', () => {
  useVirtualTime();

  it('[5.6] The partition reflects its worker while that is up', async () => {
    const scene = new Scene();

    expect(await scene.serve()).toEqual(['A']);

    const { prefetch, unavailable, lost, status } = scene.partition;
    expect({ prefetch, unavailable, lost, status, seen: scene.seen }).toEqual({
      prefetch: 1,
      unavailable: undefined,
      lost: undefined,
      status: { state: 'up', restarts: 0 },
      seen: [],
    });
  });

  it('[5.6] The partition starts another worker when its own has ended, and is unavailable until then', async () => {
    const scene = new Scene();
    const held = runRows(scene.partition, ['held']);
    const ahead = runRows(scene.partition, ['ahead']);

    await Promise.all([
      expect(held).rejects.toThrow(new PartitionLostError('out of memory')),
      expect(ahead).rejects.toThrow(NotStartedError),
      scene.die(),
    ]);
    expect(scene.partition.unavailable).toMatchObject({
      code: 'SERVING_PARTITION_LOST',
      retryAfter: 1,
    });
    await expect(runRows(scene.partition, ['early'])).rejects.toBe(scene.partition.unavailable);
    await later(99);
    expect(scene.workers).toHaveLength(1);
    await later(1);

    expect(await scene.serve()).toEqual(['A']);
    expect(scene.partition.unavailable).toBeUndefined();
    expect(scene.seen).toEqual([
      { state: 'restarting', restarts: 0, reason: 'Partition 3 is being restarted: out of memory' },
      { state: 'up', restarts: 1 },
    ]);
  });

  it('[5.6] The delay of a restart is random below a maximum that doubles with each failure, failed starts included', async () => {
    const drawn = [1, 0.5, 1];
    const scene = new Scene({ maxRestarts: 5 }, () => drawn.shift()!);
    scene.next = broken;

    await scene.die();
    await later(99);
    expect(scene.states).toEqual(['restarting']);
    await later(1);
    expect(scene.partition.status).toEqual({
      state: 'restarting',
      restarts: 1,
      reason: 'Partition 3 is being restarted: no such file',
    });
    await later(99);
    expect(scene.partition.status.restarts).toBe(1);
    await later(1);
    expect(scene.partition.status.restarts).toBe(2);
    scene.next = async () => new FakeWorker();
    await later(399);
    expect(scene.partition.status.state).toBe('restarting');
    await later(1);

    expect(scene.partition.status).toEqual({ state: 'up', restarts: 3 });
  });

  it('[5.6] The count of failures restarts after a batch that has run, and not after one that failed', async () => {
    const scene = new Scene();
    await scene.die();
    await later(100);
    const failing = runRows(scene.partition, ['bad']);
    scene.worker.batches[0]!.fail(new RangeError('a bad row'));
    await expect(failing).rejects.toThrow('a bad row');
    await scene.die();
    await later(100);
    expect(scene.partition.status.state).toBe('restarting');
    await later(100);
    expect(scene.partition.status.state).toBe('up');

    await scene.serve();
    await scene.die();
    await later(100);

    expect(scene.partition.status).toEqual({ state: 'up', restarts: 3 });
  });

  it('[5.6] After too many failures in a row the partition is lost with the reason, and retries every 30 s', async () => {
    const scene = new Scene();
    scene.next = broken;

    await scene.die();
    await later(100);
    expect(scene.partition.lost).toBeUndefined();
    await later(200);
    const { lost } = scene.partition;
    expect(lost).toBeInstanceOf(ServingUnavailableError);
    expect(lost).toMatchObject({
      message:
        'Partition 3 has failed 3 times in a row, and is tried again every 30 s: no such file',
      retryAfter: 30,
    });
    expect(scene.partition.status).toEqual({ state: 'lost', restarts: 2, reason: lost!.message });
    await expect(runRows(scene.partition, ['early'])).rejects.toBe(lost);

    await later(29_999);
    expect(scene.partition.status.restarts).toBe(2);
    await later(1);
    expect(scene.partition.status).toMatchObject({ state: 'lost', restarts: 3 });
    await later(29_999);
    expect(scene.partition.status.restarts).toBe(3);
    await later(1);
    expect(scene.partition.status.restarts).toBe(4);
    await scene.partition.close();
  });

  it('[5.6] A successful retry brings the partition up, and it is lost again when that worker ends before running a batch', async () => {
    const scene = new Scene({ maxRestarts: 0 });
    await scene.die('first');
    expect(scene.partition.lost).toMatchObject({
      message: expect.stringContaining('has failed once, and is tried again'),
    });

    await later(30_000);
    expect(scene.partition).toMatchObject({
      lost: undefined,
      unavailable: undefined,
      status: { state: 'up', restarts: 1 },
    });
    await scene.die('second');
    expect(scene.partition.lost).toMatchObject({
      message: expect.stringContaining('has failed 2 times in a row'),
    });

    await later(30_000);
    await scene.serve();
    await scene.die('third');
    expect(scene.partition.lost).toMatchObject({
      message: expect.stringContaining('has failed once, and is tried again'),
    });
    expect(scene.states).toEqual(['lost', 'up', 'lost', 'up', 'lost']);
    await scene.partition.close();
  });

  it('[5.6] [2.4] [9.2] Every worker is warmed up before the partition is up', async () => {
    const scene = new Scene();
    const warmed: unknown[] = [];
    const warm = async (runner: Partition): Promise<void> =>
      void warmed.push(await runRows(runner, ['warm-up']));
    const first = scene.partition.warmUp(warm);
    scene.worker.batches[0]!.finish(['first']);
    await first;

    await scene.die();
    await later(100);
    expect([scene.workers.length, scene.states]).toEqual([2, ['restarting']]);
    await expect(runRows(scene.partition, ['early'])).rejects.toThrow(NotStartedError);
    scene.worker.batches[0]!.finish(['second']);
    await turn();

    expect([warmed, scene.states]).toEqual([
      [['first'], ['second']],
      ['restarting', 'up'],
    ]);
  });

  it('[5.6] [2.4] A worker whose warm-up fails is closed, and another one starts', async () => {
    const scene = new Scene();
    const first = scene.partition.warmUp(
      async (runner) => void (await runRows(runner, ['warm-up'])),
    );
    scene.worker.batches[0]!.finish([]);
    await first;
    await scene.die();
    await later(100);

    const cold = scene.worker;
    cold.batches[0]!.fail(new Error('no kernel for this device'));
    await turn();
    expect([cold.isClosed, scene.partition.status.reason]).toEqual([
      true,
      'Partition 3 is being restarted: no kernel for this device',
    ]);
    await later(200);
    scene.worker.batches[0]!.finish([]);
    await turn();

    expect(scene.partition.status).toEqual({ state: 'up', restarts: 2 });
  });

  it('[5.6] A process that does not start in time is killed and counts as failed', async () => {
    const scene = new Scene({ maxRestarts: 1 }, () => 1, new FakeProcess());
    scene.next = hanging;
    await scene.die();
    await later(100 + 4999);
    expect(scene.states).toEqual(['restarting']);

    await later(1);

    const reason = `${tooLate}; raise recovery.restartTimeout if that may take so long`;
    expect(scene.partition.status).toEqual({
      state: 'lost',
      restarts: 1,
      reason: `Partition 3 has failed 2 times in a row, and is tried again every 30 s: ${reason}`,
    });
    scene.next = async () => new FakeProcess();
    await later(30_000);
    expect([scene.states, timers()]).toEqual([['restarting', 'lost', 'up'], 0]);
  });

  it('[5.6] [2.4] A process whose warm-up does not end in time is killed', async () => {
    const scene = new Scene({}, () => 1, new FakeProcess());
    scene.next = async (end) => {
      const process = new FakeProcess();
      end.addEventListener('abort', () => process.kill());
      return process;
    };
    const warmed = scene.partition.warmUp(
      async (runner) => void (await runRows(runner, ['warm-up'])),
    );
    scene.worker.batches[0]!.finish([]);
    await warmed;
    await scene.die();

    await later(100 + 5000);

    expect(scene.worker).toMatchObject({ kills: 1, isClosed: true });
    expect(scene.partition.status).toMatchObject({
      state: 'restarting',
      restarts: 1,
      reason: expect.stringContaining(tooLate),
    });
    await scene.partition.close();
  });

  it('[5.6] A thread that does not start in time is reported as hung, and no other starts beside it', async () => {
    const scene = new Scene();
    let open!: (worker: FakeWorker) => void;
    scene.next = () => new Promise((resolve) => (open = resolve));
    await scene.die();
    await later(100 + 5000);

    const reason = `${tooLate}, and takes no batch until it is; raise recovery.restartTimeout if that may take so long`;
    expect(scene.partition.status).toEqual({ state: 'hung', restarts: 1, reason });
    expect(scene.partition.lost).toBeInstanceOf(ServingUnavailableError);
    await expect(runRows(scene.partition, ['early'])).rejects.toBe(scene.partition.lost);
    expect(timers()).toBe(0);

    open(new FakeWorker());
    await turn();
    expect(await scene.serve()).toEqual(['A']);
    expect(scene.states).toEqual(['restarting', 'hung', 'up']);
  });

  it('[5.6] Another thread starts when one that hung has failed', async () => {
    const scene = new Scene();
    let fail!: (error: Error) => void;
    scene.next = () => new Promise((_, reject) => (fail = reject));
    await scene.die();
    await later(100 + 5000);

    fail(new Error('no such file'));
    await turn();

    const reason = 'Partition 3 is being restarted: no such file';
    expect(scene.partition.status).toEqual({ state: 'restarting', restarts: 1, reason });
    expect(scene.partition.lost).toBeUndefined();
    await scene.partition.close();
  });

  it('[5.6] [9.3] Closing kills a process that is still starting', async () => {
    const scene = new Scene({}, () => 1, new FakeProcess());
    scene.next = hanging;
    await scene.die();
    await later(100);

    const closed = scene.partition.close();
    scene.partition.kill!();
    await closed;

    expect([scene.states, timers()]).toEqual([['restarting'], 0]);
  });

  it('[5.6] The partition can be killed only if its workers can', async () => {
    const process = new FakeProcess();
    const supervision = { restartDelay: 100, maxRestarts: 2, restartTimeout: 5000 };
    const partition = new SupervisedPartition(
      0,
      process,
      async () => new FakeProcess(),
      supervision,
    );

    partition.kill!();
    await turn();

    expect([process.kills, partition.status.state]).toEqual([1, 'restarting']);
    partition.kill!();
    expect(new Scene().partition.kill).toBeUndefined();
    await partition.close();
  });

  it('[5.6] [9.3] Closing the partition closes its worker, whose end is no failure', async () => {
    const scene = new Scene();

    await scene.partition.close();
    expect(scene.worker.isClosed).toBe(true);
    await scene.die();

    expect([scene.seen, timers()]).toEqual([[], 0]);
    await expect(runRows(scene.partition, ['late'])).rejects.toThrow('Partition 3 is closed');
  });

  it('[5.6] [9.3] A closed partition starts no worker', async () => {
    const scene = new Scene();
    await scene.die();

    await scene.partition.close();

    expect(timers()).toBe(0);
    await later(1000);
    expect(scene.workers).toHaveLength(1);
  });

  it('[5.6] [9.3] Closing waits for a worker that is starting and closes it', async () => {
    const scene = new Scene();
    let open!: (worker: FakeWorker) => void;
    scene.next = () => new Promise((resolve) => (open = resolve));
    await scene.die();
    await later(100);

    let hasEnded = false;
    const closed = scene.partition.close().then(() => (hasEnded = true));
    await turn();
    expect(hasEnded).toBe(false);
    const worker = new FakeWorker();
    open(worker);
    await closed;

    expect([worker.isClosed, scene.states, timers()]).toEqual([true, ['restarting'], 0]);
  });

  it('[5.6] [9.3] A start that fails after closing is not retried', async () => {
    const scene = new Scene();
    let fail!: (error: Error) => void;
    scene.next = () => new Promise((_, reject) => (fail = reject));
    await scene.die();
    await later(100);

    const closed = scene.partition.close();
    fail(new Error('too late'));
    await closed;

    expect([scene.states, timers()]).toEqual([['restarting'], 0]);
  });
});
