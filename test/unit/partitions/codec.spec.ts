import { describe, expect, it } from '@jest/globals';
import { decode, encode } from '../../../lib/partitions/codec.js';
import { sixOfEachType } from '../../fixtures/tensors.js';

describe('encode and decode', () => {
  it.each(sixOfEachType)('[5.4] bring over the elements of a tensor, in memory of their own: $type', ({ data }) => {
    const [came] = decode(encode([data])) as [typeof data];

    expect(came).toEqual(data);
    if (ArrayBuffer.isView(came)) {
      expect(came.buffer.byteLength).toBe(came.byteLength);
    }
  });

  it('[5.4] leave behind what is in the same buffer', () => {
    const large = new Float32Array(1e6).fill(7);

    const bytes = encode({ view: large.subarray(3, 5) });

    expect(bytes.length).toBeLessThan(100);
    expect(decode(bytes)).toEqual({ view: Float32Array.of(7, 7) });
  });

  it('[5.4] keep two places that hold one array one', () => {
    const one = Float64Array.of(1, 2);

    const { left, right } = decode(encode({ left: one, right: one })) as Record<'left' | 'right', Float64Array>;

    expect(left).toBe(right);
  });

  it('[1.7] bring over what JSON cannot', () => {
    const value = { at: new Date(0), by: new Map([[1n, /x/]]), nothing: undefined, not: NaN, less: -0, words: ['ß'] };

    expect(decode(encode(value))).toEqual(value);
  });

  it('[6.1] refuse what cannot be cloned', () => {
    expect(() => encode({ f: () => 1 })).toThrow('could not be cloned');
  });
});
