import { describe, expect, it } from '@jest/globals';
import { decodeFrame, encodeFrame } from '../../../../lib/distribution/wire/frame.js';
import { defaultWireLimits } from '../../../../lib/distribution/wire/limits.js';
import { Packer, Unpacker } from '../../../../lib/distribution/wire/packets.js';
import { FrameError, Kind } from '../../../../lib/distribution/wire/prelude.js';
import { encodeValue } from '../../../../lib/distribution/wire/values.js';

const limits = defaultWireLimits;
const secret = 'known to all nodes';

const floats = (length: number): Float32Array => Float32Array.from({ length }, (_, i) => i / 3);

const packetsOf = (packer: Packer, value: unknown): readonly Uint8Array[] =>
  packer.pack(encodeFrame({ kind: Kind.reply, header: { id: 1 }, value: encodeValue(value, limits) }, packer.spare));

/** What is in the frames that the packets make. */
const heard = (unpacker: Unpacker, packets: readonly Uint8Array[]): unknown[] =>
  packets.flatMap((packet) => {
    const frame = unpacker.hear(packet);
    return frame ? [decodeFrame(frame, limits).value()] : [];
  });

describe('Packer and Unpacker', () => {
  it.each([undefined, secret])('[11] bring over frames of any length in packets that are not too large, secret %p', (key) => {
    const packer = new Packer({ from: 'a', maxPacket: 1024, secret: key });
    const unpacker = new Unpacker({ limits, secret: key });

    for (const length of [0, 1, 200, 239, 240, 241, 1000, 25_000]) {
      const packets = packetsOf(packer, floats(length));
      expect(Math.max(...packets.map(({ length: bytes }) => bytes))).toBeLessThanOrEqual(1024);
      expect(heard(unpacker, packets)).toEqual([floats(length)]);
    }
  });

  it('[11] refuse a packet that came before', () => {
    const [packet] = packetsOf(new Packer({ from: 'a', maxPacket: 1024, secret }), 1) as [Uint8Array];
    const unpacker = new Unpacker({ limits, secret });

    expect(heard(unpacker, [packet])).toEqual([1]);
    expect(() => unpacker.hear(packet)).toThrow(FrameError);
  });
});
