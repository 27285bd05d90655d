import { describe, expect, it } from '@jest/globals';
import { Batch, createServing, type ServingHandler, Tensor } from 'nestjs-serving';
import { collect } from '../../fixtures/async/collect.js';
import { floats } from '../../fixtures/values/tensors.js';
import { useServings } from '../../fixtures/serving/use-servings.js';
import { useVirtualTime } from '../../fixtures/async/virtual-time.js';

/** Multiplies by ten and writes the output of every batch into the same memory. */
function tenfold(): (rows: Tensor) => Tensor {
  const memory = new Float32Array(8);
  return ({ data, dims }) => {
    memory.fill(-1);
    memory.set((data as Float32Array).map((value) => value * 10));
    return new Tensor('float32', memory.subarray(0, data.length), dims);
  };
}

const rowsOf = (...values: number[]): Tensor => floats([values.length, 1], values);
const valuesOf = (reply: unknown): number[] => [...((reply as Tensor).data as Float32Array)];

class SameRows implements ServingHandler {
  init(): void {}

  handleBatch(batch: Batch): { output: unknown } {
    return { output: batch.release() };
  }
}

describe('A batch function that reuses its memory', () => {
  useVirtualTime();
  const start = useServings();
  const definition = { name: 'ten', batchSize: 2, model: { useFactory: tenfold } };

  it('[W4] A reply does not change with later batches when its call was alone in its batch', async () => {
    const serving = await start(definition);

    const first = await serving.batchedRun(rowsOf(1));
    const alone = await serving.run(rowsOf(2));
    await serving.batchedRun(rowsOf(3));
    await serving.run(rowsOf(4));

    expect([first, alone].map(valuesOf)).toEqual([[10], [20]]);
  });

  it('[W4] A call that waits for a later batch keeps the output of the earlier one', async () => {
    const serving = await start(definition);

    const replies = await Promise.all([
      serving.batchedRun(rowsOf(1, 2, 3, 4, 5)),
      serving.batchedRun(rowsOf(6)),
      serving.batchedRun(rowsOf(7, 8), { timeout: 1000 }),
    ]);

    expect(replies.map(valuesOf)).toEqual([[10, 20, 30, 40, 50], [60], [70, 80]]);
  });

  it('[W4] The events of a stream keep their output until they are read', async () => {
    const serving = await start(definition);

    const events = await collect(serving.stream(rowsOf(1, 2, 3, 4)));

    expect(events.map((event) => valuesOf('output' in event && event.output))).toEqual([
      [10, 20],
      [30, 40],
    ]);
  });

  it('[W4] A class that returns the memory of its input gives the caller a copy', async () => {
    const serving = await start(createServing({ name: 'same', model: { useClass: SameRows } }));
    const input = rowsOf(1, 2);

    const reply = await serving.batchedRun(input);
    (input.data as Float32Array).fill(0);

    expect(valuesOf(reply)).toEqual([1, 2]);
  });
});
