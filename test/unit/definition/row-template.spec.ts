import { describe, expect, it } from '@jest/globals';
import {
  Batch,
  createServing,
  InvalidInputError,
  InvalidServingError,
  type RowTemplate,
  Tensor,
  type ServingDefinition,
} from 'nestjs-serving';
import { collect } from '../../fixtures/async/collect.js';
import { floats } from '../../fixtures/values/tensors.js';
import { useServings } from '../../fixtures/serving/use-servings.js';
import { useVirtualTime } from '../../fixtures/async/virtual-time.js';

const point: RowTemplate = { type: 'float32', shape: [null, 2] };
const text: RowTemplate = {
  ids: { type: 'int64', shape: [null, 'length'] },
  mask: { type: 'int64', shape: [null, 'length'] },
};
const ids = (rows: number, length: number): Tensor =>
  new Tensor('int64', new BigInt64Array(rows * length), [rows, length]);
const points = (rows: number): Tensor =>
  floats(
    [rows, 2],
    Array.from({ length: rows * 2 }, () => 1),
  );

const useFactory = () => (rows: unknown) => rows;

class Same {
  init(): void {}

  handleBatch(batch: Batch): { output: unknown } {
    return { output: batch.consume() };
  }
}

describe('A serving that declares a template', () => {
  useVirtualTime();
  const start = useServings();

  it.each<[string, RowTemplate, unknown]>([
    ['a tensor', point, points(3)],
    ['items that were stacked', point, Batch.stack([floats([2], [1, 2])])],
    ['named tensors with axes of one length', text, { ids: ids(2, 7), mask: ids(2, 7) }],
    [
      'a nested container, by path',
      { 'state.0': { type: 'float32', shape: [null, null] } },
      { state: [points(1)] },
    ],
    ['strings', { type: 'string', shape: [null] }, new Tensor('string', ['a', 'b'], [2])],
  ])('[M2] [4.9] Rows that fit the declared template run: %s', async (_, template, rows) => {
    const serving = await start({ name: 'a', model: { useFactory, signature: { template } } });

    await expect(serving.batchedRun(rows)).resolves.toBeDefined();
    await expect(serving.run(rows)).resolves.toBeDefined();
  });

  it.each<[string, RowTemplate, unknown, string]>([
    ['plain values', point, 'a', 'these are no tensors; give some, or make them in preprocess'],
    [
      'another type',
      point,
      new Tensor('int32', [1, 2], [1, 2]),
      'the tensor is int32 and must be float32',
    ],
    [
      'another inner shape',
      point,
      floats([1, 3], [1, 2, 3]),
      'axis 1 of the tensor is 3 and must be 2',
    ],
    ['another rank', point, floats([1, 1, 2], [1, 2]), 'the tensor has 3 axes and must have 2'],
    ['a named tensor for a bare one', point, { x: points(1) }, 'the tensor is missing'],
    ['a bare tensor for a named one', { x: point }, points(1), '"x" is missing'],
    ['a tensor too many', { x: point }, { x: points(1), y: points(1) }, 'there is no input "y"'],
    [
      'lengths that differ',
      text,
      { ids: ids(1, 2), mask: ids(1, 3) },
      'axis 1 of "mask" is 3 and must be 2',
    ],
  ])(
    '[M2] [4.9] Rows that do not fit the declared template are refused alone and before they wait: %s',
    async (_, template, rows, fault) => {
      const batches: unknown[] = [];
      const serving = await start({
        name: 'a',
        model: {
          useFactory: () => (batch: unknown) => (batches.push(batch), batch),
          signature: { template },
        },
      });

      const calls = [serving.batchedRun(rows), serving.run(rows), collect(serving.stream(rows))];
      const replies = await Promise.allSettled(calls);

      expect(replies).toEqual(
        calls.map(() => ({ status: 'rejected', reason: expect.any(InvalidInputError) as unknown })),
      );
      await expect(calls[0]).rejects.toThrow(fault);
      await expect(calls[0]).rejects.toThrow(/^Serving "a" takes \[/);
      expect(batches).toEqual([]);
    },
  );

  it('[M2] The declared template of a class is checked as that of a function', async () => {
    const serving = await start(
      createServing({ name: 'a', model: { useClass: Same, signature: { template: point } } }),
    );

    await expect(serving.batchedRun(points(2))).resolves.toEqual(points(2));
    await expect(serving.batchedRun('a')).rejects.toThrow(
      'Serving "a" takes [float32[?, 2]] and was given [plain values]: these are no tensors',
    );
  });

  it.each<[unknown]>([
    [{ type: 'float31', shape: [null, 2] }],
    [{ type: 'float32', shape: [3, 2] }],
    [{ type: 'float32', shape: [null, -1] }],
    [{ type: 'float32', shape: [null], axis: 0 }],
    [{ x: { type: 'float32' } }],
    [{}],
    ['float32'],
  ])('[M2] [1.9] An invalid template fails the boot: %p', (template) => {
    const make = (): unknown =>
      createServing({
        name: 'a',
        model: { useFactory, signature: { template: template as RowTemplate } },
      });

    expect(make).toThrow(InvalidServingError);
    expect(make).toThrow(
      /option "model.signature.template" is .*; allowed is { type, shape }, or an object of these by name/,
    );
  });

  it('[M2] [1.9] A template for a model, which declares its own inputs, fails the boot', () => {
    const definition = {
      name: 'a',
      model: { file: Uint8Array.of(1), signature: { template: point } },
    } as unknown as ServingDefinition;

    expect(() => createServing(definition)).toThrow(/unknown option "model.signature"/);
  });
});
