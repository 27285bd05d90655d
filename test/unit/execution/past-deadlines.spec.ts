import { describe, expect, it } from '@jest/globals';
import { Batch, DeadlineExceededError } from 'nestjs-serving';
import { collect } from '../../fixtures/async/collect.js';
import { useServings } from '../../fixtures/serving/use-servings.js';
import { later, useVirtualTime } from '../../fixtures/async/virtual-time.js';

describe('A call whose deadline has passed', () => {
  useVirtualTime();
  const start = useServings();
  const same = { name: 'same', model: { useFactory: () => (rows: unknown) => rows } };

  it.each(['batchedRun', 'run', 'stream'] as const)(
    '[M7] A call whose deadline has passed gets a DeadlineExceededError from %s',
    async (door) => {
      const serving = await start(same);
      // The serving learns how long its batches take.
      await Promise.all(Array.from({ length: 20 }, (_, i) => serving.batchedRun(i)));

      const call =
        door === 'stream'
          ? collect(serving.stream('a', { timeout: 0 }))
          : serving[door]('a', { timeout: 0 });

      await expect(call).rejects.toThrow(DeadlineExceededError);
    },
  );

  it('[M7] A call whose deadline passes in preprocess gets a DeadlineExceededError', async () => {
    const serving = await start({
      ...same,
      preprocess: async (row: string) => {
        await later(50);
        return { batch: Batch.stack([row]) };
      },
    });

    await expect(serving.batchedRun('a', { timeout: 20 })).rejects.toThrow(DeadlineExceededError);
    await later(100);
  });
});
