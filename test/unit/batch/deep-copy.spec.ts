import { describe, expect, it } from '@jest/globals';
import * as fc from 'fast-check';
import { contentHash, InvalidOutputError, Tensor } from 'nestjs-serving';
import { deepCopy } from '../../../lib/core/batch/deep-copy.js';
import { floats, sixOfEachType } from '../../fixtures/values/tensors.js';

class Prediction {
  constructor(readonly label: string) {}
}

describe('deepCopy', () => {
  it('A copy is equal to its source', () => {
    fc.assert(
      fc.property(
        fc.anything({
          withBigInt: true,
          withDate: true,
          withMap: true,
          withSet: true,
          withTypedArray: true,
          withSparseArray: true,
        }),
        (value) => {
          expect(contentHash(deepCopy(value))).toBe(contentHash(value));
        },
      ),
      { numRuns: 1000 },
    );
  });

  it('A copy shares no part with its source', () => {
    const value = {
      list: [part()],
      tensor: floats([2], [1, 2]),
      map: new Map([[part(), part()]]),
      set: new Set([part()]),
      view: new DataView(new ArrayBuffer(2)),
    };
    const objects = objectsIn(value);
    const shared = objectsIn(deepCopy(value)).filter((object) => objects.includes(object));
    expect(objects.length).toBeGreaterThan(30);
    expect(shared).toEqual([]);
  });

  it('Tensors of every type are copied', () => {
    for (const tensor of sixOfEachType) {
      const { row } = deepCopy({ row: tensor }) as { row: Tensor };
      expect(row).toBeInstanceOf(Tensor);
      expect(row).toEqual(tensor);
      expect(row.data).not.toBe(tensor.data);
    }
  });

  it('Of a larger buffer only the visible part is copied', () => {
    const { buffer } = Uint8Array.of(9, 1, 2, 9);
    expect(deepCopy(new Uint8Array(buffer, 1, 2))).toEqual(Uint8Array.of(1, 2));
    expect((deepCopy(new Uint8Array(buffer, 1, 2)) as Uint8Array).buffer.byteLength).toBe(2);
    const view = deepCopy(new DataView(buffer, 1, 2)) as DataView;
    expect([view.byteLength, view.buffer.byteLength, view.getUint8(0)]).toEqual([2, 2, 1]);
  });

  it('The copy of a Buffer is a Buffer', () => {
    expect(Buffer.isBuffer(deepCopy(Buffer.from('text')))).toBe(true);
  });

  it('A property named __proto__ is copied as a property', () => {
    const value: unknown = JSON.parse('{ "__proto__": { "admin": true } }');
    const copy = deepCopy(value) as { admin?: boolean };
    expect(Object.keys(copy)).toEqual(['__proto__']);
    expect(copy.admin).toBeUndefined();
  });

  it.each([
    ['an instance of a class', new Prediction('cat'), 'an instance of Prediction'],
    ['a function', { run: () => 1 }, 'a function'],
    ['a symbol', [Symbol('one')], 'a symbol'],
    ['an entry named by a symbol', { [Symbol('one')]: 1 }, 'an entry named by a symbol'],
    ['an error', { error: new Error('one') }, 'an instance of Error'],
    ['memory that is shared', new SharedArrayBuffer(1), 'an instance of SharedArrayBuffer'],
  ])('deepCopy refuses %s', (_, value, part) => {
    expect(() => deepCopy(value)).toThrow(InvalidOutputError);
    expect(() => deepCopy(value)).toThrow(
      `The reply holds ${part}, which cannot be copied for each of its callers; return plain data, such as { ...instance }`,
    );
  });

  it('deepCopy refuses a value that holds itself', () => {
    const value: unknown[] = [];
    value.push({ value });
    expect(() => deepCopy(value)).toThrow(InvalidOutputError);
    expect(() => deepCopy(value)).toThrow('holds itself');
  });
});

const part = (): unknown => [
  { deep: [1] },
  new Date(0),
  Uint8Array.of(1),
  Buffer.from([1]),
  new ArrayBuffer(1),
];

/** All objects that the value is made of, buffers included. */
function objectsIn(value: unknown, found: unknown[] = []): unknown[] {
  if (typeof value !== 'object' || value === null || found.includes(value)) {
    return found;
  }
  found.push(value);
  const parts: unknown[] =
    value instanceof Map
      ? [...value].flat()
      : value instanceof Set
        ? [...value]
        : Buffer.isBuffer(value)
          ? []
          : Object.values(value);
  const buffers = ArrayBuffer.isView(value) && !Buffer.isBuffer(value) ? [value.buffer] : [];
  [...parts, ...buffers].forEach((each) => objectsIn(each, found));
  return found;
}
