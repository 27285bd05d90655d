import { expect, it } from '@jest/globals';
import * as fc from 'fast-check';
import { PacketSplitter } from '../../../../../lib/extensions/distribution/transports/tcp/tcp-packets.js';
import { FrameError, PRELUDE } from '../../../../../lib/extensions/distribution/wire/prelude.js';
import { numberedPacket } from '../../../../fixtures/async/recording-receiver.js';

function split(limit = 1000, mostText = Infinity) {
  const pieces: Buffer[] = [];
  const splitter = new PacketSplitter({
    text: (bytes) => {
      pieces.push(Buffer.from(bytes));
    },
    packet: (bytes) => pieces.push(Buffer.from(bytes)),
    limit: () => limit,
    mostText,
  });
  return { pieces, splitter };
}

/** Texts may come in pieces, packets may not. */
function packetsIn(pieces: readonly Buffer[]): string[] {
  return pieces.filter((piece) => piece[0] === 0).map((piece) => piece.toString('hex'));
}

/** As Nest writes it. */
function message(value: unknown): Buffer {
  const text = JSON.stringify(value);
  return Buffer.from(`${text.length}#${text}`);
}

it('[11] Packets and messages of Nest on one connection are separated, wherever its chunks end', () => {
  const messages = fc
    .string({ unit: 'binary', maxLength: 30 })
    .map((text) => message({ pattern: 'p', data: text }));
  const packets = fc
    .record({ number: fc.nat(0xffff_ffff), bytes: fc.integer({ min: 36, max: 200 }) })
    .map(({ number, bytes }) => Buffer.from(numberedPacket(number, bytes)));
  const streams = fc.array(fc.oneof(messages, packets), { minLength: 1, maxLength: 20 });

  fc.assert(
    fc.property(
      streams,
      fc.array(fc.integer({ min: 1, max: 70 }), { minLength: 1 }),
      (sent, chunks) => {
        const { pieces, splitter } = split();
        const all = Buffer.concat(sent);
        for (let at = 0, i = 0; at < all.byteLength; i++) {
          const end = at + chunks[i % chunks.length]!;
          splitter.push(all.subarray(at, end));
          at = end;
        }

        expect(Buffer.concat(pieces).equals(all)).toBe(true);
        expect(packetsIn(pieces)).toEqual(packetsIn(sent));
      },
    ),
    { numRuns: 300 },
  );
});

it('[11] Packets are the same however they are read, also into memory that is used again', () => {
  const sizes = fc.array(fc.constantFrom(40, 1000, 70_000, 300_000), {
    minLength: 1,
    maxLength: 6,
  });
  const reads = fc.array(fc.integer({ min: 1, max: 65_536 }), { minLength: 1 });

  fc.assert(
    fc.property(sizes, reads, (bytes, chunks) => {
      const packets: Uint8Array[] = [];
      const splitter = new PacketSplitter({
        text: () => {},
        packet: (packet) => packets.push(packet),
        limit: () => 2 ** 20,
        mostText: Infinity,
      });
      const sent = bytes.map((size, i) => Buffer.from(numberedPacket(i, size)));
      const all = Buffer.concat(sent);
      const lent = Buffer.alloc(65_536);
      for (let at = 0, i = 0; at < all.byteLength; i++) {
        const { room } = splitter;
        const target = room ?? lent;
        const length = all.copy(
          target,
          0,
          at,
          at + Math.min(chunks[i % chunks.length]!, target.length),
        );
        if (room) {
          splitter.wrote(length);
        } else {
          splitter.lend(lent.subarray(0, length));
          lent.fill(0xee);
        }
        at += length;
      }

      expect(
        packets.map((packet) => Buffer.compare(packet, sent[packets.indexOf(packet)]!)),
      ).toEqual(sent.map(() => 0));
    }),
  );
});

it('[11] The rest of a large packet is read into its own memory', () => {
  const { splitter, pieces } = split(2 ** 20);
  const packet = Buffer.from(numberedPacket(1, 300_000));
  expect(splitter.room).toBeUndefined();
  splitter.lend(packet.subarray(0, 1000));

  expect(splitter.room?.byteLength).toBe(299_000);
  packet.copy(splitter.room!, 0, 1000);
  splitter.wrote(299_000);
  expect(pieces.map((piece) => piece.equals(packet))).toEqual([true]);
  expect(splitter.room).toBeUndefined();
});

it('[11] A packet that lies in one chunk is not copied', () => {
  const packets: Uint8Array[] = [];
  const splitter = new PacketSplitter({
    text: () => {},
    packet: (bytes) => packets.push(bytes),
    limit: () => 1000,
    mostText: 0,
  });
  const chunk = Buffer.from(numberedPacket(1, 100));

  splitter.push(chunk);

  expect(packets[0]!.buffer).toBe(chunk.buffer);
});

it('[11] A packet over the limit is refused by its prelude before the rest arrives', () => {
  const { splitter } = split(100);

  splitter.push(Buffer.from(numberedPacket(1, 101)).subarray(0, PRELUDE - 1));
  expect(() =>
    splitter.push(Buffer.from(numberedPacket(1, 101)).subarray(PRELUDE - 1, PRELUDE)),
  ).toThrow(new FrameError('A packet of 101 bytes, where 100 are the most'));
  expect(() =>
    split(100).splitter.push(Buffer.from(numberedPacket(1, 101)).subarray(0, PRELUDE)),
  ).toThrow('A packet of 101 bytes');
});

it.each([
  [
    'data that begins with 0x00 and is no packet',
    Buffer.alloc(PRELUDE),
    'These bytes are no frame',
  ],
  [
    'a packet of another version',
    Buffer.from([0, 0x53, 0x56, 9, ...Buffer.alloc(PRELUDE - 4)]),
    'A frame of version 9',
  ],
  [
    'more digits than a length has',
    Buffer.from('12345678901234567#'),
    'Neither a packet nor a message begins like this',
  ],
  [
    'a text that is no message',
    Buffer.from('GET / HTTP/1.1\r\n\r\n'),
    'Neither a packet nor a message begins like this',
  ],
])('[11] Invalid data is refused: %s', (_, bytes, reason) => {
  expect(() => split().splitter.push(bytes)).toThrow(reason);
});

it('[L7] Text beyond the limit of the connection is refused, in any number of messages', () => {
  const { pieces, splitter } = split(1000, 30);

  splitter.push(Buffer.from('10#0123456789'));
  splitter.push(Buffer.from('10#0123456789'));
  expect(() => splitter.push(Buffer.from('10#0123456789'))).toThrow('More than 30 bytes of text');
  expect(Buffer.concat(pieces).toString()).toBe('10#012345678910#0123456789');
  expect(() => split(1000, 30).splitter.push(Buffer.from(`120000000#${'a'.repeat(30)}`))).toThrow(
    FrameError,
  );
});

it('[L7] Packets do not count towards the text limit', () => {
  const { pieces, splitter } = split(1000, 30);

  for (let i = 0; i < 10; i++) {
    splitter.push(Buffer.from(numberedPacket(i, 100)));
  }

  expect(pieces).toHaveLength(10);
});
