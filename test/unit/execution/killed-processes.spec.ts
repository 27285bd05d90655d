import { describe, expect, it } from '@jest/globals';
import { LocalServing, ServingClosedError } from 'nestjs-serving';
import { SupervisedPartition } from '../../../lib/core/partitions/worker/supervised.partition.js';
import type { Engine } from '../../../lib/core/partitions/engine.js';
import { features } from '../../../lib/features/features.js';
import { FakeProcess, FakeWorker } from '../../fixtures/partitions/fake-worker.js';
import { useServings } from '../../fixtures/serving/use-servings.js';
import { later, timers, turn, useVirtualTime } from '../../fixtures/async/virtual-time.js';

/** A serving with one partition, whose batches run until the test finishes them. */
function servingOf(worker: FakeWorker): LocalServing {
  const options = features.resolve({
    name: 'held',
    batchSize: 1,
    shutdown: { timeout: 1000 },
    model: { useFactory: () => () => [] },
  });
  const engine: Engine = async (_kind, _partitions, _keys, supervision) => ({
    partitions: [
      new SupervisedPartition(
        0,
        worker,
        async () => new FakeProcess(),
        supervision,
        () => 1,
      ),
    ],
  });
  return new LocalServing({ options, model: {}, engine }, { name: 'held' });
}

describe('A process at shutdown', () => {
  useVirtualTime();
  const start = useServings();

  it('[5.6] [9.3] A process is killed at the shutdown limit and not restarted, and its callers get the closed error', async () => {
    const worker = new FakeProcess();
    const serving = await start(servingOf(worker));
    const replies = Promise.allSettled(
      ['running', 'ahead', 'queued'].map((row) => serving.batchedRun(row)),
    );
    await turn();

    const closed = serving.close();
    await later(999);
    expect(worker.kills).toBe(0);
    await later(1);
    await closed;

    expect([worker.kills, timers(), serving.partitions()]).toEqual([
      1,
      0,
      [{ state: 'up', restarts: 0 }],
    ]);
    expect(await replies).toEqual(
      Array.from({ length: 3 }, () => ({
        status: 'rejected',
        reason: expect.any(ServingClosedError),
      })),
    );
  });

  it('[5.6] [9.3] A process that ends within the shutdown limit is not killed', async () => {
    const worker = new FakeProcess();
    const serving = await start(servingOf(worker));
    const reply = serving.batchedRun('running');
    await turn();

    const closed = serving.close();
    worker.batches[0]!.finish(['done']);
    await closed;

    expect([await reply, worker.kills, worker.isClosed]).toEqual(['done', 0, true]);
  });
});
