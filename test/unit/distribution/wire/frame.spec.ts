import { describe, expect, it } from '@jest/globals';
import * as fc from 'fast-check';
import { decodeFrame, encodeFrame } from '../../../../lib/distribution/wire/frame.js';
import { defaultWireLimits } from '../../../../lib/distribution/wire/limits.js';
import { Kind, packetLength, TRAILER } from '../../../../lib/distribution/wire/prelude.js';
import { encodeValue } from '../../../../lib/distribution/wire/values.js';
import { values } from '../../../fixtures/wire-values.js';

const limits = defaultWireLimits;
/** The bytes at another address: `offset` past one that fits everything. */
const movedBy = (offset: number, bytes: Uint8Array): Uint8Array => {
  const room = new Uint8Array(new ArrayBuffer(bytes.length + offset), offset);
  room.set(bytes);
  return room;
};

describe('encodeFrame and decodeFrame', () => {
  it('[11] bring over any value, wherever the bytes lie', () => {
    fc.assert(
      fc.property(values, fc.nat({ max: 8 }), fc.boolean(), (value, offset, isSigned) => {
        const sent = encodeFrame(
          { kind: Kind.reply, header: { id: 7 }, value: encodeValue(value, limits) },
          isSigned ? TRAILER : 0,
        );
        const frame = decodeFrame(movedBy(offset, sent), limits);

        expect([frame.kind, frame.header, frame.value()]).toEqual([Kind.reply, { id: 7 }, value]);
        expect(packetLength(sent)).toBe(sent.length);
      }),
    );
  });
});
