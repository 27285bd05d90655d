import { describe, expect, it } from '@jest/globals';
import type { FunctionServingDefinition } from '../../../lib/core/definition/serving-definition.js';
import { passTime, useVirtualTime } from '../../fixtures/async/virtual-time.js';
import { useCluster } from '../../fixtures/cluster/use-cluster.js';

type Run = (rows: readonly unknown[]) => unknown[] | Promise<unknown[]>;

const serving = (run: Run): FunctionServingDefinition => ({
  name: 'm',
  batchSize: 1,
  model: { useFactory: () => run },
});
const slowly: Run = async (rows) => {
  await new Promise((resolve) => setTimeout(resolve, 20));
  return [...rows];
};

describe('Nodes that cannot run their calls', () => {
  const cluster = useCluster();
  useVirtualTime();

  it.each<[string, Run]>([
    [
      'each batch',
      () => {
        throw new Error('device lost');
      },
    ],
    ['each row', (rows) => rows.map(() => new Error('device lost'))],
  ])(
    '[FV2] A node that fails %s immediately gets no more calls than the others, balanced by load',
    async (_, fails) => {
      await cluster.node({ servings: [serving(slowly)] });
      await cluster.node({ servings: [serving(fails)] });
      const web = await cluster.node({ balance: 'least-loaded' });
      await web.untilNodes('m', 2);
      let [answered, failed] = [0, 0];
      const callers = Array.from({ length: 8 }, async () => {
        for (let calls = 0; calls < 50; calls++) {
          await new Promise((resolve) => setTimeout(resolve, 5));
          await web.servings.batchedRun('m', 1).then(
            () => answered++,
            () => failed++,
          );
        }
      });
      await passTime(Promise.all(callers));

      expect(failed).toBeLessThan(answered * 1.5);
    },
  );

  it('[FV4] Calls that a node refuses because it was drained by hand go to another node, and the next ones there directly', async () => {
    const drained = await cluster.node({
      heartbeat: 1000,
      servings: [serving((rows) => rows.map(() => 'drained'))],
    });
    await cluster.node({ servings: [serving((rows) => rows.map(() => 'well'))] });
    const web = await cluster.node();
    await web.untilNodes('m', 2);
    drained.servings.get('m').drain();

    const replies = Promise.all(Array.from({ length: 20 }, () => web.servings.batchedRun('m', 1)));

    expect(await replies).toEqual(Array.from({ length: 20 }, () => 'well'));
    // Less than the pause until the next heartbeat.
    await passTime(new Promise((resolve) => setTimeout(resolve, 110)));
    expect(web.cluster.selector.candidates('m').length).toBe(1);
  });
});
