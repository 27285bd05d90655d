import { describe, expect, it } from '@jest/globals';
import { type BatchEndEvent, LocalServing } from 'nestjs-serving';
import { SupervisedPartition } from '../../../lib/core/partitions/worker/supervised.partition.js';
import type { Engine } from '../../../lib/core/partitions/engine.js';
import { features } from '../../../lib/features/features.js';
import { FakeWorker } from '../../fixtures/partitions/fake-worker.js';
import { useServings } from '../../fixtures/serving/use-servings.js';
import { turn, useVirtualTime } from '../../fixtures/async/virtual-time.js';

describe('A batch that was handed ahead', () => {
  useVirtualTime();
  const start = useServings();

  it('[W13] A batch that was handed ahead is revoked when another partition is idle, and counts as one run', async () => {
    const workers = [new FakeWorker(), new FakeWorker()];
    const options = features.resolve({
      name: 'held',
      batchSize: 1,
      partitions: 2,
      model: { useFactory: () => () => [] },
    });
    const engine: Engine = async (_kind, _partitions, _keys, supervision) => ({
      partitions: workers.map(
        (worker, i) => new SupervisedPartition(i, worker, async () => worker, supervision),
      ),
    });
    const serving = await start<string>(
      new LocalServing({ options, model: {}, engine }, { name: 'held' }),
    );
    const ends: Pick<BatchEndEvent, 'partition' | 'revoked' | 'error'>[] = [];
    serving
      .eventsOf('batch:end')
      .subscribe(({ partition, revoked, error }) => ends.push({ partition, revoked, error }));
    const replies = ['a', 'b', 'c'].map((row) => serving.batchedRun(row));
    await turn();
    expect(workers.map(({ batches }) => batches.map(({ rows }) => rows))).toEqual([
      [['a'], ['c']],
      [['b']],
    ]);

    workers[1]!.batches[0]!.finish(['B']);
    await turn();
    expect(workers.map(({ batches }) => batches.map(({ rows }) => rows))).toEqual([
      [['a']],
      [['c']],
    ]);

    workers[1]!.batches[0]!.finish(['C']);
    workers[0]!.batches[0]!.finish(['A']);
    expect(await Promise.all(replies)).toEqual(['A', 'B', 'C']);
    expect(ends).toEqual([
      { partition: 1 },
      { partition: 0, revoked: true },
      { partition: 1 },
      { partition: 0 },
    ]);
    expect(serving.counters()).toMatchObject({ batches: 3, failedBatches: 0, rows: 3 });
  });
});
