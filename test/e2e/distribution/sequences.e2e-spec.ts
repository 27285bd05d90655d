import { describe, expect, it } from '@jest/globals';
import { until } from '../../fixtures/async/awaited.js';
import { iterated, outputsOf } from '../../fixtures/async/streams.js';
import { useCluster } from '../../fixtures/cluster/use-cluster.js';
import { type CountedRow, CountingModel } from '../../fixtures/partitions/counting-model.js';

describe('A sequence of another node', () => {
  const cluster = useCluster();

  async function start() {
    const model = new CountingModel();
    const definition = {
      name: 'counter',
      batchSize: 2,
      model: { useFactory: () => model, sequence: {} },
    };
    await cluster.node({ servings: [definition] });
    const web = await cluster.node();
    await web.untilNodes('counter');
    return { model, servings: web.servings };
  }

  it('[13.1] [13.2] Its rows join those of other callers, and stream their values one by one', async () => {
    const { model, servings } = await start();
    const long = iterated(servings.stream<CountedRow>('counter', { name: 'a', steps: 200 }));
    await until(() => model.log.length > 2);

    await expect(servings.batchedRun('counter', { name: 'b', steps: 2 })).resolves.toEqual([
      'b0',
      'b1',
    ]);
    expect(model.log).toContain('step! a b');
    expect(outputsOf(await long)).toEqual(Array.from({ length: 200 }, (_, i) => `a${i}`));
  });

  it('[13.3] A row whose reader on another node leaves gives up its place', async () => {
    const { model, servings } = await start();
    for await (const event of servings.stream<CountedRow>('counter', {
      name: 'a',
      steps: Infinity,
    })) {
      expect(event).toMatchObject({ output: 'a0' });
      break;
    }

    await until(() => model.log.includes('end a cancelled'));
    await expect(servings.batchedRun('counter', { name: 'b', steps: 1 })).resolves.toEqual(['b0']);
  });
});
