import { describe, expect, it } from '@jest/globals';
import { Batch, createServing, type LocalServing, type ServingCounters } from 'nestjs-serving';
import { BatchScript } from 'nestjs-serving/testing';
import { collect } from '../../fixtures/async/collect.js';
import { floats } from '../../fixtures/values/tensors.js';
import { useServings } from '../../fixtures/serving/use-servings.js';
import { turn, useVirtualTime } from '../../fixtures/async/virtual-time.js';

const none: ServingCounters = {
  answered: 0,
  failed: {},
  batches: 0,
  failedBatches: 0,
  rows: 0,
  padding: 0,
};

const useFactory = () => (rows: unknown[]) => {
  if (rows.includes('bad')) {
    throw new Error('bad');
  }
  return rows;
};

describe('The counters of a serving', () => {
  useVirtualTime();
  const start = useServings();
  it('[M6] [12.3] The counters are zero before the first call', () => {
    expect(createServing({ name: 'a', model: { useFactory } }).counters()).toEqual(none);
  });

  it('[M6] [12.3] The counters include calls, batches and rows of every method, without observers', async () => {
    const serving = await start({ name: 'a', batchSize: 2, model: { useFactory } });

    await serving.batchedRun(Batch.stack(['a', 'b', 'c']));
    await serving.run(Batch.stack(['a', 'b', 'c']));
    await collect(serving.stream('a'));

    expect(serving.counters()).toEqual({ ...none, answered: 3, batches: 5, rows: 7 });
  });

  it('[M6] [12.3] The counters include refused and failed calls by reason', async () => {
    const script = new BatchScript<string>();
    const serving = await start(
      script.createServing({ name: 'a', queue: { maxRows: 2 }, batchSize: 1 }),
    );
    const leaver = new AbortController();
    const running = serving.batchedRun('a');
    await turn();
    const waiting = [serving.batchedRun('b'), serving.batchedRun('c', { signal: leaver.signal })];

    const calls = Promise.allSettled([
      running,
      ...waiting,
      serving.batchedRun('d'),
      serving.batchedRun('e'),
      serving.batchedRun(Batch.stack(['f']).withKey('fr')),
      serving.batchedRun('g', { timeout: 0 }),
    ]);
    leaver.abort();
    script.release((rows) => rows);
    await calls;

    expect(serving.counters()).toMatchObject({
      answered: 2,
      failed: {
        SERVING_OVERLOADED: 2,
        SERVING_CANCELLED: 1,
        SERVING_UNKNOWN_KEY: 1,
        SERVING_DEADLINE_EXCEEDED: 1,
      },
    });
  });

  it('[M6] [12.3] The counters include failed batches, and streams that failed or were left', async () => {
    const serving = await start({
      name: 'a',
      model: { useFactory },
      preprocess: (row: string) => {
        if (row === 'odd') {
          throw new RangeError('odd');
        }
        return { batch: row };
      },
    });

    await Promise.allSettled([serving.batchedRun('bad'), serving.batchedRun('odd')]);
    await collect(serving.stream('bad')).catch(() => {});
    for await (const _ of serving.stream('a')) {
      break;
    }

    expect(serving.counters()).toEqual({
      ...none,
      answered: 1,
      failed: { SERVING_BATCH_FAILED: 2, OTHER: 1 },
      batches: 3,
      failedBatches: 2,
      rows: 3,
    });
  });

  it('[M6] [12.3] The counters include padding rows and calls that share a run', async () => {
    const serving: LocalServing = await start({
      name: 'a',
      batchSize: [4],
      deduplication: { singleFlight: true },
      model: { useFactory: () => (rows: unknown) => rows },
    });
    const input = floats([1, 1], [1]);

    await Promise.all([serving.batchedRun(input), serving.batchedRun(input)]);

    expect(serving.counters()).toEqual({ ...none, answered: 2, batches: 1, rows: 1, padding: 3 });
  });
});
