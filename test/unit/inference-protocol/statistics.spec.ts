import { describe, expect, it } from '@jest/globals';
import { createServing } from 'nestjs-serving';
import { StatisticsOfModel } from '../../../lib/extensions/inference-protocol/server/statistics.js';
import { later, passTime, useVirtualTime } from '../../fixtures/async/virtual-time.js';
import { modelsOf } from '../../fixtures/serving/inference-core.js';

describe('The statistics of a model', () => {
  useVirtualTime();

  it('[18.10] [P10] They count calls, rows, batches that did not fail and times, from zeros on', async () => {
    const serving = createServing({
      name: 'slow',
      batchTimeout: 5,
      model: {
        useFactory: () => async (rows: readonly string[]) => {
          await new Promise((resolve) => setTimeout(resolve, 10));
          if (rows.includes('bad')) {
            throw new Error('bad');
          }
          return rows;
        },
      },
    });
    await passTime(serving.start());
    const model = modelsOf([serving]).find('slow');
    const statistics = new StatisticsOfModel();
    const subscription = statistics.observe(model);
    const none = { count: 0, ns: 0 };

    expect(statistics.of(model)).toEqual([
      {
        name: 'slow',
        version: '1',
        last_inference: 0,
        inference_count: 0,
        execution_count: 0,
        inference_stats: {
          success: none,
          fail: none,
          queue: none,
          compute_input: none,
          compute_infer: none,
          compute_output: none,
          cache_hit: none,
          cache_miss: none,
        },
        batch_stats: [],
        response_stats: {},
        memory_usage: [],
      },
    ]);

    await passTime(Promise.all([serving.batchedRun('a'), serving.batchedRun('b')]));
    await passTime(serving.batchedRun('bad').catch(() => undefined));
    subscription?.unsubscribe();
    await passTime(serving.batchedRun('later'));

    const [after] = statistics.of(model);
    expect(after).toMatchObject({
      inference_count: 2,
      execution_count: 1,
      inference_stats: {
        success: { count: 2, ns: 30_000_000 },
        fail: { count: 1, ns: 15_000_000 },
        queue: { count: 2, ns: 10_000_000 },
        compute_infer: { count: 2, ns: 20_000_000 },
        cache_hit: none,
        cache_miss: none,
      },
      batch_stats: [{ batch_size: 2, compute_infer: { count: 1, ns: 10_000_000 } }],
    });
    expect(after!.last_inference).toBeGreaterThan(0);
    await later();
    await passTime(serving.close());
  });

  it('[18.10] [P10] Answers from a cache are counted as such, and not as inferences', async () => {
    const store = new Map<string, unknown>();
    const serving = createServing(
      {
        name: 'cached',
        deduplication: { cache: { ttl: 1000 } },
        model: { useFactory: () => (rows: readonly string[]) => rows },
      },
      undefined,
      () => ({
        get: (key: string) => Promise.resolve(store.get(key)),
        set: (key: string, value: string) => Promise.resolve(store.set(key, value)),
      }),
    );
    await passTime(serving.start());
    const model = modelsOf([serving]).find('cached');
    const statistics = new StatisticsOfModel();
    const subscription = statistics.observe(model);

    for (const text of ['a', 'a', 'b']) {
      await passTime(serving.batchedRun(text));
    }

    expect(statistics.of(model)[0]).toMatchObject({
      inference_count: 2,
      execution_count: 2,
      inference_stats: {
        success: { count: 3 },
        compute_infer: { count: 2 },
        cache_hit: { count: 1 },
        cache_miss: { count: 2 },
      },
    });
    subscription?.unsubscribe();
    await passTime(serving.close());
  });
});
