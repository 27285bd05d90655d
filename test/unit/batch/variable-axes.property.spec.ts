import { expect, it } from '@jest/globals';
import * as fc from 'fast-check';
import { Batch, InvalidBatchError, Tensor } from 'nestjs-serving';

const PADDING = -1;

const scenario = fc
  .integer({ min: 2, max: 4 })
  .chain((axes) =>
    fc.record({
      inner: fc.array(fc.integer({ min: 1, max: 3 }), { minLength: axes, maxLength: axes }),
      rowAxis: fc.nat({ max: axes - 1 }),
      variable: fc.nat({ max: axes - 1 }),
      /** The number and length of the rows of each item. */
      items: fc.array(fc.tuple(fc.integer({ min: 1, max: 3 }), fc.nat({ max: 5 })), {
        minLength: 1,
        maxLength: 6,
      }),
      padding: fc.nat({ max: 2 }),
    }),
  )
  .filter(({ rowAxis, variable }) => rowAxis !== variable);

it('[14.4] Rows of different lengths on any axis are padded in one tensor, and cut back to what they were', () => {
  fc.assert(
    fc.property(scenario, ({ inner, rowAxis, variable, items, padding }) => {
      let next = 0;
      const tensors = items.map(([rows, length]) => {
        const dims = inner.with(rowAxis, rows).with(variable, length);
        const size = dims.reduce((product, dim) => product * dim, 1);
        return new Tensor(
          'int32',
          Int32Array.from({ length: size }, () => next++),
          dims,
        );
      });
      const axes = { '': rowAxis };
      const varied = tensors.map((tensor) =>
        Batch.ofContainer(tensor, axes).vary({ '': { axis: variable, padWith: PADDING } }),
      );
      const whole = Batch.merge(varied).pad(padding).consume() as Tensor;

      const rows = items.reduce((sum, [count]) => sum + count, 0);
      const longest = Math.max(...items.map(([, length]) => length));
      expect(whole.dims).toEqual(inner.with(rowAxis, rows + padding).with(variable, longest));
      const present = [...(whole.data as Int32Array)].filter((element) => element !== PADDING);
      expect(present.toSorted((a, b) => a - b)).toEqual(Array.from({ length: next }, (_, i) => i));
      if (longest === 0) {
        return;
      }
      let start = 0;
      const output = Batch.ofOutput(whole, axes);
      for (const [index, [count, length]] of items.entries()) {
        const cut = output.slice(start, start + count).cut({ '': variable }, length);
        expect(cut.release()).toEqual(tensors[index]);
        start += count;
      }
    }),
    { numRuns: 300 },
  );
});

it('[14.4] Rows that differ on another axis than the variable one share no batch', () => {
  const varied = [
    [1, 2, 3],
    [1, 4, 2],
  ].map((dims) => {
    const size = dims.reduce((product, dim) => product * dim, 1);
    const tensor = new Tensor('float32', new Float32Array(size), dims);
    return Batch.ofContainer(tensor).vary({ '': { axis: 1 } });
  });

  expect(varied.map(({ signature }) => signature)).toEqual([
    'float32[rows, *, 3]',
    'float32[rows, *, 2]',
  ]);
  expect(() => Batch.merge(varied)).toThrow(InvalidBatchError);
});
