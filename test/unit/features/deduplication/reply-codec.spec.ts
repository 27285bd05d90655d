import { describe, expect, it } from '@jest/globals';
import * as fc from 'fast-check';
import { contentHash, InvalidOutputError, Tensor } from 'nestjs-serving';
import { decodeReply, encodeReply } from '../../../lib/core/deduplication/reply-cache.js';
import { sixOfEachType } from '../../fixtures/values/tensors.js';

const kinds = {
  withBigInt: true,
  withDate: true,
  withMap: true,
  withSet: true,
  withTypedArray: true,
  withSparseArray: true,
};
const throughText = (reply: unknown): unknown => decodeReply(encodeReply(reply));

describe('The text of a reply', () => {
  it('Any reply is restored as it was, also from a store that writes JSON', () => {
    fc.assert(
      fc.property(fc.anything(kinds), (reply) => {
        const stored: unknown = JSON.parse(JSON.stringify(encodeReply(reply)));
        expect(contentHash(decodeReply(stored as string))).toBe(contentHash(reply));
      }),
      { numRuns: 1000 },
    );
  });

  it('[1.7] Tensors of every type are restored, alone and inside other values', () => {
    for (const tensor of sixOfEachType) {
      const reply = { label: 'cat', scores: [tensor, new Map([['same', tensor]])], count: 1 };
      const back = throughText(reply) as typeof reply;
      expect(contentHash(back)).toBe(contentHash(reply));
      expect(back.scores[0]).toBeInstanceOf(Tensor);
      expect(contentHash(throughText(tensor))).toBe(contentHash(tensor));
    }
  });

  it('Typed arrays are restored in buffers of exactly their own size', () => {
    const [one, other] = throughText([Float32Array.of(1, 2), Float32Array.of(3)]) as Float32Array[];
    expect([one!.buffer.byteLength, other!.buffer.byteLength]).toEqual([8, 4]);
    const { data } = throughText(new Tensor('float32', [1, 2, 3], [3])) as { data: Float32Array };
    expect(data.buffer.byteLength).toBe(12);
  });

  it('A Buffer is restored as a Buffer', () => {
    const back = throughText(Buffer.from('text'));
    expect(Buffer.isBuffer(back) && back.toString()).toBe('text');
  });

  it('A reply that could not be restored is refused', () => {
    expect(() => encodeReply({ at: new URL('https://example.com') })).toThrow(InvalidOutputError);
  });
});
