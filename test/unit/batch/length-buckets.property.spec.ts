import { expect, it } from '@jest/globals';
import * as fc from 'fast-check';
import { lengthBuckets, Tensor } from 'nestjs-serving';

it('[4.7] Rows are padded to the smallest bucket that holds them, and removing the padding restores them', () => {
  fc.assert(
    fc.property(
      lengths,
      dims,
      fc.nat(),
      fc.integer({ min: -9, max: 9 }),
      (sizes, outer, position, fill) => {
        const axis = 1 + (position % (outer.length - 1));
        const source = numbered(outer);
        const buckets = lengthBuckets(sizes);
        const batch = buckets.batch(source, { axis, fill: { '': fill } });
        const padded = batch.consume() as Tensor;
        const length = padded.dims[axis]!;

        expect(length).toBe(Math.min(...sizes.filter((size) => size >= outer[axis]!)));
        expect(batch).toMatchObject({ key: String(length), size: outer[0] });
        expect(unpadded(padded, axis, outer[axis]!)).toEqual([...(source.data as Int32Array)]);
        expect(padding(padded, axis, outer[axis]!)).toEqual(
          Array.from({ length: padded.size - source.size }, () => fill),
        );
      },
    ),
  );
});

/** The largest is at least as long as any axis of `dims`. */
const lengths = fc
  .uniqueArray(fc.integer({ min: 1, max: 20 }), { maxLength: 5 })
  .map((sizes) => [...sizes, 21].toSorted((one, other) => one - other));

/** Shapes of rows with at least this length. */
const dims = fc.array(fc.integer({ min: 1, max: 5 }), { minLength: 2, maxLength: 4 });

/** Elements from 100 on, which padding never uses. */
function numbered(shape: readonly number[]): Tensor {
  const size = shape.reduce((product, dim) => product * dim, 1);
  return new Tensor(
    'int32',
    Int32Array.from({ length: size }, (_, i) => 100 + i),
    shape,
  );
}

/** The elements before `length` on the axis, in their order. */
function unpadded(tensor: Tensor, axis: number, length: number): number[] {
  return elements(tensor, axis, (index) => index < length);
}

function padding(tensor: Tensor, axis: number, length: number): number[] {
  return elements(tensor, axis, (index) => index >= length);
}

function elements(
  { data, dims: shape }: Tensor,
  axis: number,
  wanted: (index: number) => boolean,
): number[] {
  const inner = shape.slice(axis + 1).reduce((product, dim) => product * dim, 1);
  return [...(data as Int32Array)].filter((_, i) => wanted(Math.floor(i / inner) % shape[axis]!));
}
