import { describe, expect, it } from '@jest/globals';
import { PartitionLostError, ServingUnavailableError } from 'nestjs-serving';
import { useGates } from '../../fixtures/batching/gate.js';
import { useServings } from '../../fixtures/serving/use-servings.js';
import { turn } from '../../fixtures/async/virtual-time.js';
import { worker } from '../../fixtures/partitions/worker.js';

describe('A thread that ends', () => {
  const gate = useGates();
  const serve = useServings();
  const ends = ['exits', 'leaves an exception uncaught'];

  it.each(ends)(
    '[5.6] A thread that %s fails the batch that it held alone, and the other partitions go on',
    async (end) => {
      const serving = await serve({
        name: 'faults',
        model: { useFile: worker('faults') },
        partitions: 2,
        batchSize: 2,
      });

      const replies = await Promise.allSettled(
        [end, 'mate', 'a', 'b', 'c', 'd', 'e'].map((row) => serving.batchedRun(row)),
      );

      for (const { reason } of replies.slice(0, 2) as PromiseRejectedResult[]) {
        expect(reason).toBeInstanceOf(PartitionLostError);
        expect(reason).toMatchObject({ code: 'SERVING_PARTITION_LOST', statusCode: 503 });
      }
      expect(replies.slice(2)).toEqual(
        ['a', 'b', 'c', 'd', 'e'].map((value) => ({ status: 'fulfilled', value })),
      );
      expect(await Promise.all([1, 2, 3, 4, 5].map((row) => serving.batchedRun(row)))).toEqual([
        1, 2, 3, 4, 5,
      ]);
    },
  );

  it('[6.5] The error of a lost thread has the exception that ended it', async () => {
    const serving = await serve({ name: 'faults', model: { useFile: worker('faults') } });

    await expect(serving.batchedRun('leaves an exception uncaught')).rejects.toMatchObject({
      message: expect.stringContaining('The thread of partition 0 ended with code 1'),
      cause: { name: 'TooLongError', message: '9 is too long' },
    });
  });

  it.each(ends)(
    '[5.6] Every call fails at once when the last thread %s and is not restarted',
    async (end) => {
      const options = {
        partitions: 2,
        batchSize: 1,
        queue: { maxRows: 4 },
        recovery: { maxRestarts: 0 },
      };
      const serving = await serve({
        name: 'faults',
        model: { useFile: worker('faults') },
        ...options,
      });

      const dying = await Promise.allSettled(
        [end, end, 'queued', 'queued'].map((row) => serving.batchedRun(row)),
      );
      const later = await Promise.allSettled(
        Array.from({ length: 4 }, () => serving.batchedRun('later')),
      );

      const reasons = [...dying, ...later].map(
        (reply) => (reply as PromiseRejectedResult).reason as Error,
      );
      reasons.slice(0, 2).forEach((reason) => expect(reason).toBeInstanceOf(PartitionLostError));
      // The batch that was handed ahead is lost with its thread, and queued rows have no partition
      // left.
      reasons
        .slice(2, 4)
        .forEach(({ name }) =>
          expect(['PartitionLostError', 'ServingUnavailableError']).toContain(name),
        );
      reasons.slice(4).forEach((reason) => expect(reason).toBeInstanceOf(ServingUnavailableError));
    },
  );

  it('[5.6] [9.3] A lost thread does not keep its serving from closing', async () => {
    const serving = await serve({
      name: 'faults',
      model: { useFile: worker('faults') },
      partitions: 2,
      batchSize: 1,
    });
    const lost = serving.batchedRun('exits').catch((error: unknown) => error);

    await serving.close();

    expect(await lost).toBeInstanceOf(PartitionLostError);
  });

  it('[5.6] A lost thread leaves the batch of another partition running', async () => {
    const serving = await serve({
      name: 'gate',
      model: { useFile: worker('gate') },
      partitions: 2,
      batchSize: 1,
    });
    const other = await serve({ name: 'faults', model: { useFile: worker('faults') } });
    const held = gate();
    const reply = serving.batchedRun(held.row);
    await held.entered();

    await expect(other.batchedRun('exits')).rejects.toThrow(PartitionLostError);
    await turn();
    held.open();

    expect(await reply).toMatchObject({ size: 1 });
  });
});
