import { describe, expect, it } from '@jest/globals';
import { type SignatureOptions, Tensor } from 'nestjs-serving';
import { later, useVirtualTime } from '../../fixtures/async/virtual-time.js';
import { useServings } from '../../fixtures/serving/use-servings.js';
import { floats } from '../../fixtures/values/tensors.js';

const template = { type: 'float32', shape: [null, null], variableAxis: 1, padWith: -1 } as const;

describe('The variable axis of a template', () => {
  useVirtualTime();
  const startServing = useServings();

  it('[14.4] Rows of different lengths share a batch, are padded, and outputs are cut back', async () => {
    const batches: Tensor[] = [];
    const serving = await startServing<unknown>({
      name: 'rows',
      model: {
        useFactory: () => (rows: Tensor) => (batches.push(rows), rows),
        signature: { template, outputs: { '': { variableAxis: 1 } } },
      },
    });
    const rows = [floats([1, 2], [1, 2]), floats([1, 4], [3, 4, 5, 6]), floats([2, 1], [7, 8])];
    const replies = rows.map((row) => serving.batchedRun(row));
    await later();

    expect(batches).toEqual([
      floats([4, 4], [1, 2, -1, -1, 3, 4, 5, 6, 7, -1, -1, -1, 8, -1, -1, -1]),
    ]);
    expect(await Promise.all(replies)).toEqual(rows);
  });

  it('[14.4] Results that are a list, one for each row, are not cut', async () => {
    const serving = await startServing<unknown>({
      name: 'rows',
      model: {
        useFactory:
          () =>
          ({ dims: [size, length] }: Tensor) =>
            Array.from({ length: size! }, () => [length]),
        signature: { template },
      },
    });
    const replies = [floats([1, 1], [1]), floats([1, 3], [1, 2, 3])].map((row) =>
      serving.batchedRun(row),
    );
    await later();

    expect(await Promise.all(replies)).toEqual([[[3]], [[3]]]);
  });

  it.each<[object, string]>([
    [{ template: { ...template, variableAxis: 0 } }, 'variableAxis is one of these'],
    [{ template: { ...template, variableAxis: 2 } }, 'variableAxis is one of these'],
    [{ template: { ...template, shape: [null, 3] } }, 'variableAxis is one of these'],
    [{ template: { ...template, padWith: 'no' } }, 'padWith an element to pad it with'],
    [{ template: { type: 'float32', shape: [null, null], padWith: 1 } }, 'and padWith an element'],
    [
      { template: { type: 'float32', shape: [null, null] }, outputs: { y: { variableAxis: 1 } } },
      'outputs "y" are cut back to the length of their inputs, and template has no variableAxis',
    ],
    [{ template, outputs: { y: { variableAxis: 0 } } }, 'an object of { variableAxis: number }'],
  ])('[14.4] The signature %j fails at boot', async (signature, message) => {
    const serving = {
      name: 'rows',
      model: { useFactory: () => (rows: Tensor) => rows, signature: signature as SignatureOptions },
    };

    await expect(startServing<unknown>(serving)).rejects.toThrow(message);
  });
});
