import { describe, expect, it } from '@jest/globals';
import type { FunctionServingDefinition } from '../../../lib/core/definition/serving-definition.js';
import { useCluster } from '../../fixtures/cluster/use-cluster.js';
import { passTime, useVirtualTime } from '../../fixtures/async/virtual-time.js';

/** Each partition answers a row in 10 ms, whatever its weight says. */
const serving = (weight: number, partitions: number): FunctionServingDefinition => ({
  name: 'm',
  batchSize: 1,
  distribution: { weight },
  partitions,
  model: {
    useFactory: () => async (rows: readonly unknown[]) => {
      await new Promise((resolve) => setTimeout(resolve, 10));
      return rows;
    },
  },
});

describe('Calls to nodes with a wrong weight', () => {
  const cluster = useCluster();
  useVirtualTime();

  /** The milliseconds in which 32 callers get 600 answers. */
  async function duration(balance: 'weighted' | 'least-loaded'): Promise<number> {
    const namespace = balance;
    for (const [weight, partitions] of [
      [1, 1],
      [8, 1],
      [1, 2],
    ] as const) {
      await cluster.node({ namespace, servings: [serving(weight, partitions)] });
    }
    const web = await cluster.node({ namespace, balance });
    await web.untilNodes('m', 3);
    const start = performance.now();
    let left = 600;
    const callers = Array.from({ length: 32 }, async () => {
      while (left-- > 0) {
        await web.servings.batchedRun('m', left);
      }
    });
    await passTime(Promise.all(callers));
    return performance.now() - start;
  }

  it('[11] Balancing by load answers calls to nodes with a wrong weight in less than half the time', async () => {
    expect(2 * (await duration('least-loaded'))).toBeLessThan(await duration('weighted'));
  });
});
