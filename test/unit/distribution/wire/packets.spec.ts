import { describe, expect, it } from '@jest/globals';
import * as fc from 'fast-check';
import { RequestTooLargeError } from 'nestjs-serving';
import { decodeFrame, encodeFrame } from '../../../../lib/extensions/distribution/wire/frame.js';
import { defaultWireLimits } from '../../../../lib/extensions/distribution/wire/limits.js';
import {
  Packer,
  type PackerOptions,
  Unpacker,
} from '../../../../lib/extensions/distribution/wire/packets.js';
import {
  FrameError,
  Kind,
  packetLength,
} from '../../../../lib/extensions/distribution/wire/prelude.js';
import { encodeValue } from '../../../../lib/extensions/distribution/wire/values.js';

const limits = defaultWireLimits;
const secret = 'known to all nodes';

const packerOf = (options: Partial<PackerOptions> = {}): Packer =>
  new Packer({ from: 'node-a', maxPacket: 1024, ...options });

const frameOf = (packer: Packer, value: unknown, header: object = {}): Uint8Array =>
  encodeFrame({ kind: Kind.reply, header, value: encodeValue(value, limits) }, packer.spare);

const packetsOf = (packer: Packer, value: unknown): readonly Uint8Array[] =>
  packer.pack(frameOf(packer, value));

const packetOf = (packer: Packer, value: unknown): Uint8Array =>
  packetsOf(packer, value)[0]!.slice();

/** The values of the frames that the packets make. */
const received = (unpacker: Unpacker, packets: Iterable<Uint8Array>): unknown[] =>
  [...packets].flatMap((packet) => {
    const frame = unpacker.receive(packet);
    return frame ? [decodeFrame(frame, limits).value()] : [];
  });

const bytesOf = (length: number): Uint8Array => Uint8Array.from({ length }, (_, i) => i * 7);

/** Sorted and quick to compare. */
const texts = (values: readonly Uint8Array[]): string[] =>
  values.map((value) => Buffer.from(value).toString('latin1')).toSorted();

/** The packets of each list in order, mixed with those of the others as the numbers determine. */
function* mixed(
  lists: readonly (readonly Uint8Array[])[],
  order: readonly number[],
): Generator<Uint8Array> {
  const open = lists.map((list) => [...list]);
  for (let i = 0; open.some(({ length }) => length > 0); i++) {
    const left = open.filter(({ length }) => length > 0);
    yield left[order[i % order.length]! % left.length]!.shift()!;
  }
}

describe('Packer and Unpacker', () => {
  it('[11] Frames of any length arrive in packets within the limit, in any interleaving', () => {
    const sends = fc.record({
      lengths: fc.array(fc.nat({ max: 3000 }), { minLength: 1, maxLength: 6 }),
      maxPacket: fc.integer({ min: 256, max: 2048 }),
      order: fc.array(fc.nat({ max: 100 }), { minLength: 1 }),
      key: fc.constantFrom(undefined, secret),
    });
    fc.assert(
      fc.property(sends, ({ lengths, maxPacket, order, key }) => {
        const packers = ['a', 'b'].map((from) => packerOf({ from, maxPacket, secret: key }));
        const unpacker = new Unpacker({ limits, secret: key });
        const packets = lengths.map((length, i) => packetsOf(packers[i % 2]!, bytesOf(length)));

        const ill = packets
          .flat()
          .filter((packet) => packet.length > maxPacket || packetLength(packet) !== packet.length);
        expect(ill).toEqual([]);
        const values = received(unpacker, mixed(packets, order)) as Uint8Array[];
        expect(texts(values)).toEqual(texts(lengths.map(bytesOf)));
      }),
    );
  });

  it('[11] A frame that fits one packet stays as it is', () => {
    const packer = packerOf();
    const frame = frameOf(packer, bytesOf(900));

    expect(packer.pack(frame)).toEqual([frame]);
    expect(packer.pack(frame)[0]).toBe(frame);
    expect(new Unpacker().receive(frame)).toBe(frame);
  });

  it.each<[string, (packets: Uint8Array[]) => Uint8Array[]]>([
    ['is missing, or late', ([a, , c]) => [a!, c!]],
    ['comes twice', ([a, b]) => [a!, b!, b!]],
    ['is the first again', ([a]) => [a!, a!]],
    ['has no first', ([, b]) => [b!]],
  ])('[11] A frame is dropped when one of its fragments %s, and no other frame is', (_, change) => {
    const packer = packerOf();
    const unpacker = new Unpacker();
    const [broken, whole] = [packetsOf(packer, bytesOf(3000)), packetsOf(packer, bytesOf(2000))];
    const packets = change([...broken]);

    expect(received(unpacker, whole.slice(0, 1))).toEqual([]);
    expect(received(unpacker, packets.slice(0, -1))).toEqual([]);
    expect(() => received(unpacker, packets.slice(-1))).toThrow(
      'does not follow on what came before',
    );
    expect(() => received(unpacker, broken.slice(1))).toThrow(
      'does not follow on what came before',
    );
    expect(received(unpacker, whole.slice(1))).toEqual([bytesOf(2000)]);
  });

  it('[11] Unfinished frames of one sender are dropped, and those of others are not', () => {
    const [a, b] = ['a', 'b'].map((from) => packetsOf(packerOf({ from }), bytesOf(2000))) as [
      Uint8Array[],
      Uint8Array[],
    ];
    const unpacker = new Unpacker();
    received(unpacker, [a[0]!, b[0]!]);
    unpacker.dropFrom('a');

    expect(() => received(unpacker, a.slice(1))).toThrow(FrameError);
    expect(received(unpacker, b.slice(1))).toEqual([bytesOf(2000)]);
  });

  it('[11] A frame that the receiver would refuse is not sent', () => {
    const packer = packerOf({ limits: { ...limits, bytes: 1000, headerBytes: 50 } });

    expect(() => packer.pack(frameOf(packer, bytesOf(1000)))).toThrow(RequestTooLargeError);
    expect(() => packer.pack(frameOf(packer, 1, { name: 'n'.repeat(50) }))).toThrow(
      RequestTooLargeError,
    );
    expect(packer.pack(frameOf(packer, bytesOf(100), { name: 'n' }))).toHaveLength(1);
  });

  it('[11] A packet size without room for data is refused', () => {
    expect(() => packerOf({ maxPacket: 100 })).toThrow(RangeError);
    expect(() => packerOf({ maxPacket: 256, secret })).not.toThrow();
  });

  it('[11] Incomplete and foreign packets are refused', () => {
    const unpacker = new Unpacker();
    const packet = packetOf(packerOf(), 1);

    expect(() => unpacker.receive(packet.subarray(0, 10))).toThrow(FrameError);
    expect(() => unpacker.receive(packet.subarray(0, -1))).toThrow('came in');
    expect(() => unpacker.receive(Buffer.concat([packet, packet]))).toThrow('came in');
  });

  it.each<[string, object, unknown]>([
    ['without a sender', { id: 0, index: 0, total: 9 }, bytesOf(9)],
    ['without a number', { from: 'a', id: '0', index: 0, total: 9 }, bytesOf(9)],
    ['of a negative length', { from: 'a', id: 0, index: 0, total: -9 }, bytesOf(9)],
    ['of a fractional length', { from: 'a', id: 0, index: 0.5, total: 9 }, bytesOf(9)],
    ['of no bytes', { from: 'a', id: 0, index: 0, total: 9 }, 'bytes'],
    ['that is empty', { from: 'a', id: 0, index: 0, total: 9 }, bytesOf(0)],
    ['of more bytes than its frame', { from: 'a', id: 0, index: 0, total: 8 }, bytesOf(9)],
    [
      'of a frame that is too large',
      { from: 'a', id: 0, index: 0, total: limits.bytes + 1 },
      bytesOf(9),
    ],
    [
      'with a header that is too long',
      { from: 'a'.repeat(1024), id: 0, index: 0, total: 9 },
      bytesOf(9),
    ],
  ])('[11] A fragment %s is refused', (_, header, value) => {
    const packet = encodeFrame({ kind: Kind.fragment, header, value: encodeValue(value, limits) });

    expect(() => new Unpacker({ limits }).receive(packet)).toThrow(FrameError);
  });
});

describe('A shared secret', () => {
  const start = 1_700_000_000_000;

  it('[11] Only packets signed with the secret are accepted', () => {
    const unpacker = new Unpacker({ limits, secret });

    expect(received(unpacker, [packetOf(packerOf({ secret }), 1)])).toEqual([1]);
    expect(received(unpacker, [packetOf(packerOf({ secret: Buffer.from(secret) }), 2)])).toEqual([
      2,
    ]);
    expect(() => unpacker.receive(packetOf(packerOf(), 1))).toThrow('A packet without a signature');
    expect(() => unpacker.receive(packetOf(packerOf({ secret: 'another' }), 1))).toThrow(
      'do all nodes have the same secret and namespace?',
    );
  });

  it('[11] A signed packet is refused by a node without a secret', () => {
    expect(() => new Unpacker().receive(packetOf(packerOf({ secret }), 1))).toThrow(
      'has no secret',
    );
  });

  it('[11] The signature covers every bit of a packet', () => {
    const packet = packetOf(packerOf({ secret }), { a: bytesOf(9) });
    for (let bit = 0; bit < packet.length * 8; bit++) {
      const changed = packet.slice();
      changed[bit >> 3]! ^= 1 << (bit & 7);
      expect(() => new Unpacker({ secret }).receive(changed)).toThrow(FrameError);
    }
    expect(received(new Unpacker({ secret }), [packet])).toEqual([{ a: bytesOf(9) }]);
  });

  it('[11] The signature covers each fragment of a frame', () => {
    const [first, second] = packetsOf(packerOf({ secret }), bytesOf(1300));
    const unpacker = new Unpacker({ secret });
    const forged = second!.slice();
    forged[200]! ^= 1;

    expect(unpacker.receive(first!)).toBeUndefined();
    expect(() => unpacker.receive(forged)).toThrow('whose signature is wrong');
    expect(received(unpacker, [second!])).toEqual([bytesOf(1300)]);
  });

  it('[11] Repeated packets are refused in any order, and late ones are accepted', () => {
    const packer = packerOf({ secret });
    const unpacker = new Unpacker({ secret });
    const packets = Array.from({ length: 20 }, (_, i) => packetOf(packer, i));
    const others = Array.from({ length: 20 }, (_, i) => packetOf(packerOf({ secret }), i));

    expect(received(unpacker, packets.toReversed())).toHaveLength(20);
    expect(received(unpacker, others)).toHaveLength(20);
    for (const packet of [...packets, ...others]) {
      expect(() => unpacker.receive(packet)).toThrow('A packet that was received before');
    }
  });

  it.each([-60_001, 60_001])(
    '[11] Packets signed more than a minute in the past or future are refused: %d ms',
    (by) => {
      const at = (time: number) => packetOf(packerOf({ secret, now: () => time }), 1);
      const unpacker = new Unpacker({ secret, now: () => start });

      expect(received(unpacker, [at(start + by - Math.sign(by))])).toEqual([1]);
      expect(() => unpacker.receive(at(start + by))).toThrow('do the clocks of all nodes agree?');
    },
  );

  it('[11] A repeated packet is refused after any time', () => {
    let time = start;
    const unpacker = new Unpacker({ secret, now: () => time, uptime: () => time });
    // From a node whose clock is ahead.
    const packet = packetOf(packerOf({ secret, now: () => start + 59_000 }), 1);
    const other = packerOf({ secret, now: () => time });

    expect(received(unpacker, [packet])).toEqual([1]);
    for (; time < start + 300_000; time += 5000) {
      expect(received(unpacker, [packetOf(other, 2)])).toEqual([2]);
      expect(() => unpacker.receive(packet)).toThrow(FrameError);
    }
  });

  it('[S3] A repeated packet is refused when the clock of the node steps back', () => {
    let [time, uptime] = [start, 0];
    const unpacker = new Unpacker({ secret, now: () => time, uptime: () => uptime });
    const sender = packerOf({ secret, now: () => time });
    const packet = packetOf(sender, 1);
    expect(received(unpacker, [packet])).toEqual([1]);
    for (let minute = 0; minute < 10; minute++) {
      [time, uptime] = [time + 61_000, uptime + 61_000];
      expect(received(unpacker, [packetOf(packerOf({ secret, now: () => time }), 2)])).toEqual([2]);
    }

    time = start;

    expect(() => unpacker.receive(packet)).toThrow('A packet that was received before');
    // The sender goes on normally.
    expect(received(unpacker, [packetOf(sender, 3)])).toEqual([3]);
  });

  it('[S3] Old counters are dropped also while the clock of the node is set back', () => {
    let [time, uptime] = [start, 1e6];
    const unpacker = new Unpacker({ secret, now: () => time, uptime: () => uptime });
    const sender = packerOf({ secret, now: () => time });
    const old = packetOf(sender, 1);
    received(unpacker, [packetOf(sender, 2)]);
    [time, uptime] = [time - 50_000, uptime + 61_000];
    received(unpacker, [packetOf(packerOf({ secret, now: () => time }), 3)]);

    expect(() => unpacker.receive(old)).toThrow('A packet that was received before');
  });

  it('[11] A signature needs the room that the frame has reserved for it', () => {
    expect(() => packerOf({ secret }).pack(frameOf(packerOf(), 1))).toThrow(
      'encode its frame with the bytes to spare',
    );
  });
});
