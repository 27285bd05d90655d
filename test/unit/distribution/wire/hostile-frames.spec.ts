import { describe, expect, it } from '@jest/globals';
import { decodeFrame, encodeFrame } from '../../../../lib/extensions/distribution/wire/frame.js';
import { defaultWireLimits } from '../../../../lib/extensions/distribution/wire/limits.js';
import { Packer, Unpacker } from '../../../../lib/extensions/distribution/wire/packets.js';
import { FrameError, Kind } from '../../../../lib/extensions/distribution/wire/prelude.js';
import { encodeValue } from '../../../../lib/extensions/distribution/wire/values.js';
import { mutated } from '../../../fixtures/values/mutated-bytes.js';
import { wireSamples } from '../../../fixtures/cluster/wire-samples.js';

const limits = defaultWireLimits;

/** `npm run fuzz` reads more of them and measures the memory. */
const COUNT = 40_000;

const framesOf = (packer: Packer): Uint8Array[] =>
  wireSamples.map((value) =>
    encodeFrame(
      { kind: Kind.request, header: { id: 7, name: 'model' }, value: encodeValue(value, limits) },
      packer.spare,
    ),
  );

/** The numbers of refused and accepted packets. Any other error is thrown on. */
const tally = (
  packets: Iterable<Uint8Array>,
  read: (bytes: Uint8Array) => void,
): { refused: number; taken: number } => {
  const counts = { refused: 0, taken: 0 };
  for (const bytes of packets) {
    try {
      read(bytes);
      counts.taken++;
    } catch (error) {
      if (!(error instanceof FrameError)) {
        throw new Error(`Of the bytes ${Buffer.from(bytes).toString('hex')}`, { cause: error });
      }
      counts.refused++;
    }
  }
  return counts;
};

describe('Hostile packets', () => {
  it('[11] Mutated frames are read or refused with a typed error', () => {
    const frames = framesOf(new Packer({ from: 'a', maxPacket: 1e6 }));
    const { refused, taken } = tally(mutated(frames, COUNT, 1), (bytes) =>
      decodeFrame(bytes, limits).value(),
    );

    expect(refused + taken).toBe(COUNT);
    expect(Math.min(refused, taken)).toBeGreaterThan(COUNT / 100);
  });

  it('[11] Mutated fragments are read or refused with a typed error, within the memory limit', () => {
    const packer = new Packer({ from: 'a', maxPacket: 256 });
    const unpacker = new Unpacker({ limits: { ...limits, bytes: 1e6 } });
    const fragments = framesOf(packer).flatMap((frame) => packer.pack(frame));
    const { refused, taken } = tally(mutated(fragments, COUNT, 2), (bytes) =>
      unpacker.receive(bytes),
    );

    expect(refused + taken).toBe(COUNT);
    expect(Math.min(refused, taken)).toBeGreaterThan(COUNT / 100);
  });

  it('[11] Mutated packets are all refused when they must be signed', () => {
    const packer = new Packer({ from: 'a', maxPacket: 256, secret: 'right' });
    const unpacker = new Unpacker({ limits, secret: 'right' });
    const packets = framesOf(packer).flatMap((frame) => packer.pack(frame));
    const changed = (function* () {
      for (const bytes of mutated(packets, COUNT, 3)) {
        if (!packets.some((packet) => Buffer.compare(packet, bytes) === 0)) {
          yield bytes;
        }
      }
    })();

    expect(tally(changed, (bytes) => unpacker.receive(bytes)).taken).toBe(0);
  });
});
