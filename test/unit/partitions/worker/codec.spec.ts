import { deserialize, serialize } from 'node:v8';
import { describe, expect, it } from '@jest/globals';
import { decode, encode, owned } from '../../../../lib/core/partitions/worker/codec.js';
import { sixOfEachType } from '../../../fixtures/values/tensors.js';

/** The value after crossing to another process. */
const cross = (value: unknown): unknown => decode(owned(deserialize(serialize(encode(value)))));

describe('encode and decode', () => {
  it.each(sixOfEachType)(
    '[5.4] The elements of a tensor are decoded in memory of their own: $type',
    ({ data }) => {
      const [came, same] = cross([data, data]) as [typeof data, typeof data];

      expect(came).toEqual(data);
      expect(same).toBe(came);
      if (ArrayBuffer.isView(came)) {
        expect(came.buffer.byteLength).toBe(came.byteLength);
      }
    },
  );

  it('[5.4] The rest of a shared buffer is not encoded', () => {
    const large = new Float32Array(1e6).fill(7);

    const packet = encode({ left: large.subarray(3, 5), right: large.subarray(4, 5) });

    expect(serialize(packet).length).toBeLessThan(200);
    expect(cross({ view: large.subarray(3, 5) })).toEqual({ view: Float32Array.of(7, 7) });
  });

  it('[5.4] A Buffer, which shares its memory, is decoded as a typed array, as in threads', () => {
    const came = cross(Buffer.from([1, 2])) as Uint8Array;

    expect([Buffer.isBuffer(came), came.buffer.byteLength, ...came]).toEqual([false, 2, 1, 2]);
  });

  it('[1.7] Values that JSON cannot represent are encoded and decoded', () => {
    const value = {
      at: new Date(0),
      by: new Map([[1n, /x/]]),
      view: new DataView(new ArrayBuffer(2)),
      nothing: undefined,
      not: NaN,
      less: -0,
      words: ['ß'],
    };

    expect(cross(value)).toEqual(value);
  });

  it('[6.1] A value that cannot be cloned is refused', () => {
    expect(() => encode({ f: () => 1 })).toThrow('could not be cloned');
  });
});
