import { afterEach, beforeEach, describe, expect, it } from '@jest/globals';
import {
  Batch,
  type BatchResult,
  InvalidOutputError,
  type Isolation,
  PartitionLostError,
  type Tensor,
} from 'nestjs-serving';
import { FlatContainer, type Leaf } from '../../../../lib/core/batch/container.js';
import {
  LostInTransitError,
  NotStartedError,
  RevokedError,
  OutputLostError,
  STEPPED,
} from '../../../../lib/core/partitions/partition.js';
import { WorkerPartition } from '../../../../lib/core/partitions/worker/worker.partition.js';
import { type Gate, useGates } from '../../../fixtures/batching/gate.js';
import { floats } from '../../../fixtures/values/tensors.js';
import { worker } from '../../../fixtures/partitions/worker.js';
import type { BatchListener } from '../../../../lib/core/partitions/batch-function.js';

/** The batch, and the storage that its rows get when they are gathered. */
function watched(batch: Batch): [Batch, Tensor] {
  const rows = batch.gather() as FlatContainer;
  const [{ tensor }] = rows.leaves as [Leaf];
  return [Object.create(batch, { gather: { value: () => rows } }) as Batch, tensor];
}

const silent: BatchListener = {
  hooks: [],
  hook: () => undefined,
  step: () => undefined,
  isWaiting: () => true,
};

/** The result of a batch without listeners for hooks and steps. */
async function run(
  partition: WorkerPartition,
  batch: Batch,
  hooks: readonly string[] = [],
): Promise<BatchResult<unknown>> {
  const { key, size, padding } = batch;
  const result = await partition.run(
    batch,
    { key, size, padding, partition: 0, hooks },
    { ...silent, hooks },
  );
  if (result === STEPPED) {
    return { output: [] };
  }
  const { output } = result;
  return { ...result, output: output instanceof FlatContainer ? output.toContainer() : output };
}

/**
 * Nested objects of this depth. More than about 2000 can be written but not read with a normal
 * stack.
 */
function nested(depth: number): unknown {
  let value: unknown = 'deep';
  for (let i = 0; i < depth; i++) {
    value = { value };
  }
  return value;
}

/** The errors of the rejected replies. */
const reasons = async (replies: readonly Promise<unknown>[]): Promise<unknown[]> =>
  (await Promise.allSettled(replies)).map(
    (reply) => (reply as PromiseRejectedResult).reason as unknown,
  );

/** A task that loads until the gate is opened. */
const gatedTask = ({ row }: Gate) => ({
  partition: 4,
  keys: ['default'],
  options: row,
  file: worker('gated-load').href,
});

describe.each<Isolation>(['thread', 'process'])('WorkerPartition with a %s', (isolation) => {
  const gate = useGates();
  let partitions: WorkerPartition[];

  beforeEach(() => {
    partitions = [];
  });

  afterEach(() => Promise.all(partitions.map((partition) => partition.close())));

  async function open(name: string, partition = 0): Promise<WorkerPartition> {
    const task = { partition, keys: ['default'], options: {}, file: worker(name).href };
    const opened = await WorkerPartition.open(task, isolation);
    partitions.push(opened);
    return opened;
  }

  it('[5.4] Plain values are copied, also when they are tensors', async () => {
    const partition = await open('echo');
    const row = floats([2], [1, 2]);

    const { output } = await run(partition, Batch.ofValues([row]));

    expect([row, output]).toEqual([floats([2], [1, 2]), [floats([2], [1, 2])]]);
  });

  it('[5.4] Each plain row is copied into memory of its own', async () => {
    const partition = await open('echo');
    const table = Float32Array.from({ length: 100 }, (_, i) => i);
    const rows = [
      table.slice(3, 5),
      { inner: [table.slice(7, 8)] },
      new DataView(table.slice(9, 10).buffer),
    ];

    const { output } = await run(partition, Batch.ofValues(rows));

    expect(output).toEqual(rows);
    const [first, second, third] = output as [Float32Array, { inner: [Float32Array] }, DataView];
    expect([first, second.inner[0], third].map(({ buffer }) => buffer.byteLength)).toEqual([
      8, 4, 4,
    ]);
  });

  it('[9.1] Options that cannot be sent to a worker are refused', async () => {
    const task = { partition: 0, keys: [], options: { log: () => 1 }, file: worker('echo').href };

    await expect(WorkerPartition.open(task, isolation)).rejects.toThrow('could not be cloned');
  });

  it('[4.6] Batches that were handed ahead are answered in order', async () => {
    const partition = await open('echo');
    const rows = Array.from({ length: 20 }, (_, n) => [n]);

    const results = await Promise.all(rows.map((row) => run(partition, Batch.ofValues(row))));

    expect(results.map(({ output }) => output)).toEqual(rows);
  });

  it('[W13] Batches that have not begun are revoked, and later ones run', async () => {
    const partition = await open('gate');
    const held = gate();
    const running = run(partition, Batch.ofValues([held.row]));
    await held.entered();
    const ahead = ['a', 'b'].map((row) => run(partition, Batch.ofValues([row])));

    partition.revoke();
    for (const batch of ahead) {
      await expect(batch).rejects.toThrow(RevokedError);
    }
    const later = run(partition, Batch.ofValues(['later']));
    held.open();

    expect(await running).toMatchObject({ output: [{ size: 1 }] });
    expect(await later).toMatchObject({ output: [{ row: 'later' }] });
  });

  it('[H4] A worker whose batch never ends is halted when its event loop turns', async () => {
    const partition = await open('never');
    const running = expect(run(partition, Batch.ofValues(['a']))).rejects.toThrow(
      PartitionLostError,
    );

    partition.halt();

    await running;
  });

  it('[5.6] When a worker ends the running batch fails, and the others are reported as not started', async () => {
    const partition = await open('faults', 2);

    const replies = await Promise.allSettled(
      ['exits', 'ahead', 'further ahead'].map((row) => run(partition, Batch.ofValues([row]))),
    );
    const later = await run(partition, Batch.ofValues(['later'])).catch((error: unknown) => error);

    const [held, ...others] = [
      ...replies.map((reply) => (reply as PromiseRejectedResult).reason as unknown),
      later,
    ];
    expect(held).toBe(partition.lost);
    expect(held).toBeInstanceOf(PartitionLostError);
    expect(held).not.toBeInstanceOf(NotStartedError);
    for (const error of others) {
      expect(error).toBeInstanceOf(NotStartedError);
      expect(error).toMatchObject({ name: 'PartitionLostError', code: 'SERVING_PARTITION_LOST' });
    }
    expect([held, ...others].map((error) => (error as Error).message)).toEqual(
      Array(4).fill(`The ${isolation} of partition 2 ended with code 3`),
    );
    expect(await partition.ended).toBe(partition.lost);
  });

  it('[5.6] [6.5] The uncaught error that ended a worker is reported', async () => {
    const partition = await open('faults');

    await expect(
      run(partition, Batch.ofValues(['leaves an exception uncaught'])),
    ).rejects.toMatchObject({
      message: expect.stringMatching(
        `^The ${isolation} of partition 0 ended with code 1 \\(.*9 is too long\\)$`,
      ),
      cause: { name: 'TooLongError', message: '9 is too long', cause: { name: 'RangeError' } },
    });
  });

  it('[5.3] Closing ends the worker after the batches that it holds, which is no failure', async () => {
    const partition = await open('gate');
    const held = gate();
    const replies = [held.row, 'ahead'].map((row) => run(partition, Batch.ofValues([row])));
    await held.entered();
    const closed = partition.close();
    held.open();

    expect(await Promise.all(replies)).toMatchObject([
      { output: [{ size: 1 }] },
      { output: [{ row: 'ahead' }] },
    ]);
    await closed;
    expect(partition.lost).toBeInstanceOf(PartitionLostError);
    expect(await Promise.race([partition.ended, Promise.resolve('not missed')])).toBe('not missed');
  });

  it('[6.1] A result nested too deeply to be read becomes an error, and the others stay as they are', async () => {
    const partition = await open('nested');

    const { output } = await run(partition, Batch.ofValues([2500, 3]));

    expect(output).toEqual([expect.any(InvalidOutputError), nested(3)]);
  });

  it('[4.6] [6.1] Metadata nested too deeply to be read fails its batch, and the next one gets its own result', async () => {
    const partition = await open('nested');

    const replies = await Promise.allSettled([
      run(partition, Batch.ofValues([2500]), ['metadata']),
      run(partition, Batch.ofValues([1])),
      run(partition, Batch.ofValues([2])),
    ]);

    expect(replies).toMatchObject([
      { reason: { name: 'InvalidOutputError' } },
      { value: { output: [nested(1)] } },
      { value: { output: [nested(2)] } },
    ]);
  });

  it('[6.1] A row nested as deeply as can be written is accepted', async () => {
    const partition = await open('counting');

    const [deep, fine] = await Promise.allSettled(
      [nested(2500), 'row'].map((row) => run(partition, Batch.ofValues([row]))),
    );

    expect([deep, fine]).toMatchObject([{ value: { output: [1] } }, { value: { output: [1] } }]);
  });
});

describe('WorkerPartition with a thread', () => {
  const gate = useGates();

  it('[5.6] [4.6] A revoked batch never begins, and later ones run', async () => {
    const [begun, starts] = [0, 0].map(() => new Int32Array(new SharedArrayBuffer(4)));
    const task = {
      partition: 0,
      keys: ['default'],
      options: { begun, starts },
      file: worker('mortal').href,
    };
    const partition = await WorkerPartition.open(task);
    const held = gate();
    const holding = run(partition, Batch.ofValues([held.row]));
    const ahead = run(partition, Batch.ofValues([0]));
    await held.entered();

    partition.revokePending();

    await expect(ahead).rejects.toThrow(NotStartedError);
    const next = run(partition, Batch.ofValues([0, 0]));
    held.open();
    expect(await Promise.all([holding, next])).toMatchObject([
      { output: [{}] },
      { output: [{ row: 0 }, { row: 0 }] },
    ]);
    expect(Atomics.load(begun!, 0)).toBe(2);
    await partition.close();
  });

  it('[5.3] [H4] A thread is not ended while native code loads, and ends when its event loop turns', async () => {
    const held = gate();
    const end = new AbortController();
    const opening = WorkerPartition.open(gatedTask(held), 'thread', end.signal);
    const failure = expect(opening).rejects.toThrow(/ended with code 0 while it loaded/);
    await held.entered();

    end.abort();
    expect(held.isLeft).toBe(false);
    held.open();

    await failure;
  });

  it('[5.4] The rows of a batch are moved to the thread, and the output is moved back', async () => {
    const partition = await WorkerPartition.open({
      partition: 0,
      keys: ['default'],
      options: {},
      file: worker('echo').href,
    });
    const [batch, rows] = watched(Batch.concatenate([floats([2, 1], [1, 2])]));

    const { output } = await run(partition, batch);

    expect(rows.data).toHaveLength(0);
    expect(output).toEqual(floats([2, 1], [1, 2]));
    await partition.close();
  });

  it('[5.3] A thread cannot be killed', async () => {
    const partition = await WorkerPartition.open({
      partition: 0,
      keys: [],
      options: {},
      file: worker('echo').href,
    });

    expect(partition.kill).toBeUndefined();
    await partition.close();
  });
});

describe('WorkerPartition with a process', () => {
  const gate = useGates();
  let partition: WorkerPartition;

  beforeEach(async () => {
    partition = await WorkerPartition.open(
      { partition: 0, keys: ['default'], options: {}, file: worker('dying').href },
      'process',
    );
  });

  afterEach(async () => {
    partition.kill!();
    await partition.close();
  });

  it('[5.6] A process can be killed during a run, and the batch that was handed ahead has not started', async () => {
    const held = gate();
    const replies = [held.row, 'ahead'].map((row) => run(partition, Batch.ofValues([row])));
    await held.entered();

    partition.kill!();

    const [running, ahead] = await reasons(replies);
    expect(running).toEqual(
      new PartitionLostError('The process of partition 0 was killed by SIGKILL'),
    );
    expect(running).not.toBeInstanceOf(NotStartedError);
    expect(ahead).toBeInstanceOf(NotStartedError);
    expect(await partition.ended).toBe(running);
  });

  it('[5.6] A process can be killed before and while it loads', async () => {
    const held = gate();
    const end = new AbortController();
    const opening = WorkerPartition.open(gatedTask(held), 'process', end.signal);
    const killed = expect(opening).rejects.toThrow(
      'The process of partition 4 was killed by SIGKILL while it loaded file:',
    );
    await held.entered();

    end.abort();

    await killed;
    await expect(WorkerPartition.open(gatedTask(held), 'process', end.signal)).rejects.toThrow(
      'was killed by SIGKILL',
    );
  });

  it('[5.6] A batch given to a process that has ended is reported as not started', async () => {
    partition.kill!();

    const [before] = await reasons([run(partition, Batch.ofValues(['on its way']))]);
    await partition.ended;
    const [after] = await reasons([run(partition, Batch.ofValues(['too late']))]);

    expect([before, after]).toEqual([expect.any(NotStartedError), expect.any(NotStartedError)]);
    expect(after).not.toBeInstanceOf(LostInTransitError);
  });

  it('[H7] Only the batch that was in transit when the process was killed is reported as a possible cause', async () => {
    partition.kill!();

    const losses = await reasons(
      ['on its way', 'ahead'].map((row) => run(partition, Batch.ofValues([row]))),
    );

    expect(losses.map((error) => (error as Error).constructor)).toEqual([
      LostInTransitError,
      NotStartedError,
    ]);
  });

  it('[5.6] After a kill the running batch, the one whose output was in transit, and those handed ahead have different errors', async () => {
    const held = gate();
    const replies = [{ bytes: 2 ** 24 }, held.row, 'ahead'].map((row) =>
      run(partition, Batch.ofValues([row])),
    );
    // No message of the process is read meanwhile, and the output exceeds the pipe's buffer.
    while (!held.isEntered);
    partition.kill!();

    const losses = (await reasons(replies)).map((error) => (error as Error).constructor);
    expect(losses).toEqual([OutputLostError, PartitionLostError, NotStartedError]);
  });

  it('[5.6] All messages that a process sent before its end arrive', async () => {
    const replies = [{ bytes: 2 ** 24 }, 'exits'].map((row) =>
      run(partition, Batch.ofValues([row])),
    );

    const [output, exited] = await Promise.allSettled(replies);

    expect(output).toMatchObject({ value: { output: [{ byteLength: 2 ** 24 }] } });
    expect(exited).toMatchObject({
      reason: { message: 'The process of partition 0 ended with code 7' },
    });
  });
});
