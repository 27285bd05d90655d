import { describe, expect, it } from '@jest/globals';
import { Batch } from 'nestjs-serving';
import { useGates } from '../../fixtures/batching/gate.js';
import { useServings } from '../../fixtures/serving/use-servings.js';
import { worker } from '../../fixtures/partitions/worker.js';

describe('An inline run', () => {
  const gate = useGates();
  const serve = useServings();

  it('[3.1] [9.3] An inline run in several pieces ends with its last one, also when the serving closes after the first', async () => {
    const serving = await serve<{ size: number }[]>({
      name: 'gate',
      model: { useFile: worker('gate') },
      batchSize: 1,
    });
    const gates = [gate(), gate()];
    const reply = serving.run(Batch.stack(gates.map(({ row }) => row)));
    await gates[0]!.entered();

    const closed = serving.close();
    gates.forEach((each) => each.open());

    expect((await reply).map(({ size }) => size)).toEqual([1, 1]);
    await closed;
  });
});
