import { afterEach, beforeEach, describe, expect, it } from '@jest/globals';
import type { Tensor } from 'onnxruntime-common';
import { Batch } from '../../../lib/batch/batch.js';
import { PartitionLostError } from '../../../lib/errors.js';
import { type BatchListener, type BatchResult, NotStartedError, STEPPED } from '../../../lib/partitions/partition.js';
import { ThreadPartition } from '../../../lib/partitions/thread.partition.js';
import { Gate } from '../../fixtures/gate.js';
import { floats } from '../../fixtures/tensors.js';
import { worker } from '../../fixtures/worker.js';

const open = (name: string, partition = 0): Promise<ThreadPartition> =>
  ThreadPartition.open({ partition, keys: ['default'], options: {}, file: worker(name).href });

/** The batch, and the storage that its rows get when it is consumed. */
function watched(batch: Batch): [Batch, Tensor] {
  const rows = batch.consume();
  return [Object.create(batch, { consume: { value: () => rows } }) as Batch, rows as Tensor];
}

const silent: BatchListener = { hooks: [], hook: () => undefined, step: () => undefined, isWaiting: () => true };

/** The result of a batch that nobody listens to before its end. */
async function run(partition: ThreadPartition, batch: Batch): Promise<BatchResult> {
  const { key, size, padding } = batch;
  const result = await partition.run(batch, { key, size, padding, partition: 0, hooks: [] }, silent);
  return result === STEPPED ? { output: [] } : result;
}

describe('ThreadPartition', () => {
  let partitions: ThreadPartition[];

  beforeEach(() => {
    partitions = [];
  });

  afterEach(() => Promise.all(partitions.map((partition) => partition.close())));

  it('[5.4] moves the rows of a batch to the thread, and the output back', async () => {
    partitions = [await open('echo')];
    const [batch, rows] = watched(Batch.concatenate([floats([2, 1], [1, 2])]));

    const { output } = await run(partitions[0]!, batch);

    expect(rows.data).toHaveLength(0);
    expect(output).toEqual(floats([2, 1], [1, 2]));
  });

  it('[5.4] copies plain values, also where they are tensors', async () => {
    partitions = [await open('echo')];
    const row = floats([2], [1, 2]);

    const { output } = await run(partitions[0]!, Batch.ofValues([row]));

    expect([row, output]).toEqual([floats([2], [1, 2]), [floats([2], [1, 2])]]);
  });

  it('[4.6] answers batches that were handed ahead in their order', async () => {
    partitions = [await open('echo')];
    const rows = Array.from({ length: 20 }, (_, n) => [n]);

    const results = await Promise.all(rows.map((row) => run(partitions[0]!, Batch.ofValues(row))));

    expect(results.map(({ output }) => output)).toEqual(rows);
  });

  it('[5.6] hands what it had not begun to a sibling when its thread dies', async () => {
    partitions = await Promise.all([open('faults', 0), open('echo', 1)]);
    partitions.forEach((partition) => (partition.siblings = partitions));

    const [held, ahead] = await Promise.allSettled(['exits', 'ahead'].map((row) => run(partitions[0]!, Batch.ofValues([row]))));

    expect((held as PromiseRejectedResult).reason).toBeInstanceOf(PartitionLostError);
    expect(ahead).toMatchObject({ value: { output: ['ahead'] } });
  });

  it('[5.6] fails what it had not begun when its thread dies and there is nobody to take it', async () => {
    partitions = [await open('faults')];

    const replies = await Promise.allSettled(['exits', 'ahead'].map((row) => run(partitions[0]!, Batch.ofValues([row]))));

    expect(replies.map((reply) => (reply as PromiseRejectedResult).reason)).toEqual([partitions[0]!.lost, partitions[0]!.lost]);
    await expect(run(partitions[0]!, Batch.ofValues(['later']))).rejects.toBe(partitions[0]!.lost);
  });

  it('[5.6] [4.6] never begins with what was taken back from it, and goes on with what comes later', async () => {
    const partition = await open('tally');
    partitions = [partition];
    const gate = new Gate();
    const begun = new Int32Array(new SharedArrayBuffer(4));
    const held = run(partition, Batch.ofValues([{ gate: gate.row, begun }]));
    const ahead = run(partition, Batch.ofValues([{ begun }]));
    await gate.entered();

    partition.fence();

    await expect(ahead).rejects.toThrow(NotStartedError);
    const next = run(partition, Batch.ofValues([{ begun }]));
    gate.open();
    expect(await Promise.all([held, next])).toMatchObject([{ output: [1] }, { output: [2] }]);
    expect(Atomics.load(begun, 0)).toBe(2);
  });

  it('[5.6] tells of the end of its thread', async () => {
    partitions = [await open('faults')];

    await expect(run(partitions[0]!, Batch.ofValues(['exits']))).rejects.toThrow(PartitionLostError);

    expect(await partitions[0]!.ended).toBe(partitions[0]!.lost);
  });

  it('[5.3] ends after the batches that it holds', async () => {
    const partition = await open('gate');
    const gate = new Gate();
    const replies = [gate.row, 'ahead'].map((row) => run(partition, Batch.ofValues([row])));
    await gate.entered();
    const ended = partition.close();
    gate.open();

    expect(await Promise.all(replies)).toMatchObject([{ output: [{ size: 1 }] }, { output: [{ row: 'ahead' }] }]);
    await ended;
    expect(partition.lost).toBeInstanceOf(PartitionLostError);
  });
});
