import * as os from 'node:os';
import { describe, expect, it, jest } from '@jest/globals';
import * as fc from 'fast-check';
import { Tensor } from 'nestjs-serving';
import { decodeFrame, encodeFrame } from '../../../../lib/extensions/distribution/wire/frame.js';
import {
  defaultWireLimits,
  type WireLimits,
} from '../../../../lib/extensions/distribution/wire/limits.js';
import {
  FrameError,
  Kind,
  packetLength,
  PRELUDE,
  TRAILER,
  writePrelude,
} from '../../../../lib/extensions/distribution/wire/prelude.js';
import { encodeValue } from '../../../../lib/extensions/distribution/wire/values.js';
import { compareInvalidDates } from '../../../fixtures/values/invalid-dates.js';
import { sixOfEachType } from '../../../fixtures/values/tensors.js';
import { values } from '../../../fixtures/cluster/wire-values.js';

compareInvalidDates();

const limits = defaultWireLimits;

const frameOf = (value: unknown, header: object = {}): Uint8Array =>
  encodeFrame({
    kind: Kind.request,
    call: 9,
    timeout: 1500,
    header,
    value: encodeValue(value, limits),
  });

/** The bytes at another address: `offset` past one that fits everything. */
const movedBy = (offset: number, bytes: Uint8Array): Uint8Array => {
  const room = new Uint8Array(new ArrayBuffer(bytes.length + offset), offset);
  room.set(bytes);
  return room;
};

const read = (bytes: Uint8Array, less: Partial<WireLimits> = {}): unknown =>
  decodeFrame(bytes, { ...limits, ...less }).value();

/** The parts of the value that lie in the memory of the frame. */
const areViews = (frame: Uint8Array): boolean[] =>
  Object.values(read(frame) as Record<string, Uint8Array>).map(
    ({ buffer }) => buffer === frame.buffer,
  );

/** The call that other languages have to encode. */
const golden = {
  value: {
    image: new Tensor('float32', [1, -0.5, 3], [1, 3]),
    ids: new Tensor('int64', [1n, -1n], [2]),
    words: new Tensor('string', ['ß'], [1]),
    rest: [NaN, -0, undefined, 255n, new Date(0), Uint8Array.of(7)],
  },
  header: { id: 7, name: 'm' },
  bytes: [
    // 0 "SV", version 3; a request, no flags, 4 blocks; 19 bytes of header, 232 of body
    '00535603 01000400 13000000 e8000000',
    // Call 9, with 1500 ms
    '0000000000002240 0000000000709740',
    // {"id":7,"name":"m"}
    '7b226964223a372c226e616d65223a226d227d 0000000000',
    // json, 134 bytes: [134]; float32, 12 bytes: [1, 3]; int64, 16 bytes: [2]; uint8, 1 byte: [1]
    '81010000 86000000 86000000',
    '01020000 0c000000 01000000 03000000',
    '07010000 10000000 02000000',
    '02010000 01000000 01000000 00000000',
    // {"image":{"$t":0},"ids":{"$t":1},"words":{"$s":[[1],["ß"]]},
    '7b22696d616765223a7b222474223a307d2c22696473223a7b222474223a317d2c22776f726473223a7b222473223a5b5b315d2c5b22c39f225d5d7d2c',
    // "rest":[{"$n":"NaN"},{"$n":"-0"},{"$u":0},{"$i":"ff"},{"$d":0},{"$a":2}]}
    '2272657374223a5b7b22246e223a224e614e227d2c7b22246e223a222d30227d2c7b222475223a307d2c7b222469223a226666227d2c7b222464223a307d2c7b222461223a327d5d7d 0000',
    '0000803f 000000bf 00004040 00000000',
    '0100000000000000 ffffffffffffffff',
    '07 00000000000000',
  ]
    .join('')
    .replaceAll(' ', ''),
};

const padded = (part: Buffer): Buffer => Buffer.concat([part, Buffer.alloc(-part.length & 7)]);

/** A frame from its parts, which an encoder would never write. */
const crafted = (
  header: string,
  blocks: readonly [code: number, dims: readonly number[], data: string | Uint8Array][] = [],
): Uint8Array => {
  const table = blocks.map(([code, dims, data]) => {
    const entry = Buffer.alloc(8 + 4 * dims.length);
    entry.set([code, dims.length]);
    entry.writeUInt32LE(Buffer.from(data).length, 4);
    dims.forEach((dim, i) => entry.writeUInt32LE(dim, 8 + 4 * i));
    return entry;
  });
  const body = Buffer.concat([
    padded(Buffer.concat(table)),
    ...blocks.map(([, , data]) => padded(Buffer.from(data))),
  ]);
  const prelude = Buffer.alloc(PRELUDE);
  writePrelude(prelude, {
    kind: Kind.request,
    flags: 0,
    blocks: blocks.length,
    head: Buffer.byteLength(header),
    body: body.length,
    call: 9,
    timeout: 1500,
  });
  return Buffer.concat([prelude, padded(Buffer.from(header)), body]);
};

const tree = (text: string): [number, number[], string] => [129, [Buffer.byteLength(text)], text];

const withShape = (dims: readonly number[]): Uint8Array =>
  crafted('{}', [tree('{"$t":0}'), [2, dims, '']]);

describe('encodeFrame', () => {
  it('[11] The bytes of a frame are those promised to other languages', () => {
    expect(Buffer.from(frameOf(golden.value, golden.header)).toString('hex')).toBe(golden.bytes);
  });

  it('[11] The value is copied, and nothing but its bytes', () => {
    const data = new Float32Array(1000).subarray(10, 12);
    const frame = frameOf(data);
    data.fill(5);

    expect(frame.byteLength).toBeLessThan(120);
    expect(read(frame)).toEqual(Float32Array.of(0, 0));
  });

  it('[11] A frame discloses nothing of the memory that it was allocated in', () => {
    const dirty = jest
      .spyOn(Buffer, 'allocUnsafe')
      .mockImplementation((length) => Buffer.alloc(length, 0xff));
    try {
      expect(Buffer.from(frameOf(golden.value, golden.header)).toString('hex')).toBe(golden.bytes);
    } finally {
      dirty.mockRestore();
    }
  });

  it('[11] Bytes can be reserved for a signature, which are not part of the value', () => {
    const frame = { kind: Kind.reply, header: {}, value: encodeValue([1, 2n], limits) };
    const [bare, roomy] = [encodeFrame(frame), encodeFrame(frame, TRAILER)];
    roomy.fill(0xff, -TRAILER);

    expect([roomy.length - bare.length, packetLength(roomy)]).toEqual([TRAILER, roomy.length]);
    expect(read(roomy)).toEqual([1, 2n]);
  });

  it('[11] A tensor whose memory was detached after encoding is refused', () => {
    const data = Float32Array.of(1, 2);
    const value = encodeValue(new Tensor('float32', data, [2]), limits);
    structuredClone(data, { transfer: [data.buffer] });

    expect(() => encodeFrame({ kind: Kind.request, header: {}, value })).toThrow(
      'has been taken away; was it transferred?',
    );
  });
});

describe('decodeFrame', () => {
  it('[11] Frames written by other languages are read', () => {
    const frame = decodeFrame(Buffer.from(golden.bytes, 'hex'), limits);

    expect(frame).toMatchObject({ kind: Kind.request, call: 9, timeout: 1500 });
    expect([frame.header, frame.value()]).toEqual([golden.header, golden.value]);
  });

  it('[11] Any value is read back, at any alignment', () => {
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
      { numRuns: 500 },
    );
  });

  it('[W17] An invalid Date is read back as an invalid Date', () => {
    const came = read(frameOf({ date: new Date(NaN), list: [new Date(NaN), new Date(0)] }));

    expect(came).toEqual({ date: new Date(NaN), list: [new Date(NaN), new Date(0)] });
    expect(read(frameOf(new Date(0)))).not.toEqual(new Date(NaN));
    expect(read(frameOf(new Date(NaN)))).not.toEqual(new Date(0));
  });

  it('[W17] The value of the seed that once failed is read back', () => {
    fc.assert(
      fc.property(values, fc.nat({ max: 8 }), fc.boolean(), (value, offset, _isSigned) => {
        expect(read(movedBy(offset, frameOf(value)))).toEqual(value);
      }),
      { seed: 1813998191, path: '366:53:53', endOnFailure: true },
    );
  });

  it.each(sixOfEachType)('[11] Every bit of a tensor is read back: $type', (tensor) => {
    for (const dims of [[6], [], [1, 0, 3], [2, ...Array.from({ length: 14 }, () => 1), 3]]) {
      const size = dims.reduce((product, dim) => product * dim, 1);
      const sent = new Tensor(tensor.type, tensor.data.slice(0, size), dims);
      for (const offset of [0, 1]) {
        const came = read(movedBy(offset, frameOf(sent))) as Tensor;
        expect([came.type, came.dims, came.data]).toEqual([tensor.type, dims, sent.data]);
        expect(came).toBeInstanceOf(Tensor);
      }
    }
  });

  it('[11] The bits of every NaN are kept', () => {
    const bits = Uint32Array.of(0x7fc0_0001, 0xffc1_2345, 0x7f80_0001);
    const came = read(
      movedBy(1, frameOf(new Tensor('float32', new Float32Array(bits.buffer), [3]))),
    ) as Tensor;

    expect(new Uint32Array((came.data as Float32Array).buffer)).toEqual(bits);
  });

  it('[11] Values are views of the received bytes and are copied only when misaligned', () => {
    const sent = frameOf({ wide: new Float64Array(3), narrow: Uint8Array.of(1, 2) });
    expect(areViews(movedBy(0, sent))).toEqual([true, true]);
    expect(areViews(movedBy(4, sent))).toEqual([false, true]);
  });

  it('[11] The value is decoded only on request', () => {
    const frame = decodeFrame(crafted('{"id":1}', [tree('{')]), limits);

    expect(frame.header).toEqual({ id: 1 });
    expect(() => frame.value()).toThrow(FrameError);
  });

  it('[11] A frame without a value is read', () => {
    const frame = decodeFrame(encodeFrame({ kind: Kind.cancel, header: { id: 1 } }), limits);

    expect([frame.header, frame.value()]).toEqual([{ id: 1 }, undefined]);
  });

  it('[11] A frame of another version is refused with the supported one', () => {
    const bytes = frameOf(1);
    bytes[3] = 1;

    expect(() => decodeFrame(bytes, limits)).toThrow(
      new FrameError('A frame of version 1; only version 3 is understood here'),
    );
  });

  it.each<[string, number, number, string]>([
    ['of another format', 0, 0x7b, 'These bytes are no frame'],
    ['of an unknown kind', 4, 99, 'A frame of the kind 99 with the flags 0'],
    ['of kind 0', 4, 0, 'A frame of the kind 0 '],
    ['with an unknown flag', 5, 2, 'with the flags 2'],
    [
      'that is marked as signed and too short for a signature',
      5,
      1,
      'A frame whose table does not end in it',
    ],
    ['with fewer blocks than declared', 6, 3, 'or a block with more than 16 axes'],
    ['with more blocks than declared', 6, 1, 'A frame whose blocks end at 64, and its body at 80'],
    [
      'with more blocks than are allowed',
      7,
      0xff,
      'A frame with 65282 blocks; at most 4097 are allowed',
    ],
    ['with a longer header than declared', 8, 1, 'A part of the frame is no JSON'],
    [
      'with a header of gigabytes',
      11,
      0xff,
      'A frame of 4278190160 bytes; at most 67108864 are allowed',
    ],
    [
      'with a body of gigabytes',
      15,
      0xff,
      'A frame of 4278190160 bytes; at most 67108864 are allowed',
    ],
    ['with a longer body than received', 12, 56, 'A frame of 96 bytes came in 80'],
    [
      'whose first block is no tree',
      40,
      2,
      'A frame with a block of the type 2, which is not known here, or not there',
    ],
    ['with a block of an unknown type', 52, 99, 'A frame with a block of the type 99'],
    ['with a block of more axes than are allowed', 53, 17, 'a block with more than 16 axes'],
    [
      'with a block of fewer axes than declared',
      53,
      0,
      'A frame with a block of 8 bytes, which are not those of its shape []',
    ],
    ['with a reserved byte that is not 0', 54, 1, 'A frame with a block of the type 2'],
    [
      'with a block that is longer than its shape',
      56,
      16,
      'A frame with a block of 16 bytes, which are not those of its shape [8]',
    ],
    [
      'with a block that is shorter than its shape',
      60,
      16,
      'A frame with a block of 8 bytes, which are not those of its shape [16]',
    ],
    ['of a call with a fractional number', 16, 1, 'A frame of call 9.000000000000002 '],
    ['of a call with a negative number', 23, 0xc0, 'A frame of call -9 '],
    ['with a negative timeout', 31, 0xc0, 'with a timeout of -1500 ms'],
  ])('[11] A frame %s is refused', (_, at, byte, message) => {
    const bytes = frameOf(Uint8Array.of(1, 2, 3, 4, 5, 6, 7, 8));
    expect(read(bytes)).toEqual(Uint8Array.of(1, 2, 3, 4, 5, 6, 7, 8));
    bytes[at] = byte;

    expect(() => decodeFrame(bytes, limits)).toThrow(FrameError);
    expect(() => decodeFrame(bytes, limits)).toThrow(message);
  });

  it('[11] Every truncated frame and a frame with extra bytes are refused', () => {
    const bytes = frameOf(golden.value, golden.header);

    for (let length = 0; length < bytes.length; length++) {
      expect(() => decodeFrame(bytes.subarray(0, length), limits)).toThrow(FrameError);
    }
    expect(() => decodeFrame(Buffer.concat([bytes, Buffer.alloc(8)]), limits)).toThrow(FrameError);
  });

  it.each<[string, Uint8Array, string]>([
    ['a header that is no object', crafted('[1]'), 'is no plain object'],
    ['a header that is null', crafted('null'), 'is no plain object'],
    ['a header that is no JSON', crafted('{"a":'), 'is no JSON'],
    [
      'a header that would change a prototype',
      crafted('{"a":[{"__proto__":{"b":1}}]}'),
      'is no plain object',
    ],
    [
      'a header that hides such a name behind escapes',
      crafted(String.raw`{"\u005f_proto__":{"b":1}}`),
      'is no plain object',
    ],
    [
      'a header that is too deep',
      crafted(`{"a":${'['.repeat(70)}${']'.repeat(70)}}`),
      'is deeper than 64 levels',
    ],
    [
      'a header that is too long',
      crafted(JSON.stringify({ a: 'b'.repeat(limits.headerBytes) })),
      'at most 65536 are allowed',
    ],
    [
      'a tree that is not the first block',
      crafted('{}', [[2, [1], Uint8Array.of(1)], tree('1')]),
      'a block of the type 2',
    ],
    ['two trees', crafted('{}', [tree('1'), tree('1')]), 'a block of the type 129'],
    [
      'a shape of more elements than can be counted',
      withShape(Array.from({ length: 16 }, () => 2 ** 31)),
      'not those of its shape',
    ],
    [
      'a shape whose product is 0 modulo 2 ** 64',
      withShape([2 ** 31, 2 ** 31, 4]),
      'not those of its shape',
    ],
  ])('[11] An invalid frame is refused: %s', (_, bytes, message) => {
    expect(() => decodeFrame(bytes, limits)).toThrow(FrameError);
    expect(() => decodeFrame(bytes, limits)).toThrow(message);
  });

  it('[11] An empty tensor of any shape is read', () => {
    expect((read(withShape([2 ** 31, 2 ** 31, 0])) as Tensor).dims).toEqual([2 ** 31, 2 ** 31, 0]);
  });

  it.each<[string, Uint8Array, Partial<WireLimits>]>([
    ['longer than allowed', frameOf(new Uint8Array(100)), { bytes: 100 }],
    [
      'of more tensors than allowed',
      frameOf([new Uint8Array(1), new Uint8Array(1)]),
      { tensors: 1 },
    ],
    ['of more axes than allowed', frameOf(new Tensor('int8', [1], [1, 1, 1])), { rank: 2 }],
    ['with a longer header than allowed', frameOf(1, { a: 'abc' }), { headerBytes: 10 }],
    ['of more parts than allowed', frameOf([1, 2, [3]]), { nodes: 4 }],
    ['deeper than allowed', frameOf([[[1]]]), { depth: 2 }],
  ])('[11] A frame %s is refused by the limits', (_, bytes, less) => {
    expect(() => read(bytes, less)).toThrow(FrameError);
  });

  it.each<[string, string | Uint8Array]>([
    ['is no JSON', '{"a":1'],
    ['is no UTF-8', Uint8Array.of(0x22, 0xff, 0x22)],
    ['is empty', ''],
    ['is too deep for the stack', '['.repeat(1e6)],
    ['has more parts than allowed', `[${'0,'.repeat(limits.nodes)}0]`],
    ['hides its levels behind a backslash', `["\\\\",${'['.repeat(70)}${']'.repeat(70)},"\\\\"]`],
    ['has a string without an end', String.raw`["\\\"]`],
  ])('[11] A value that %s is refused without details', (_, text) => {
    const frame = decodeFrame(crafted('{}', [[129, [Buffer.from(text).length], text]]), limits);

    expect(() => frame.value()).toThrow(
      /^A part of the frame is (no UTF-8|no JSON|deeper than 64 levels, or of more than 1048576 parts)$/,
    );
  });

  it('[11] Brackets, commas and quotes in strings are kept', () => {
    const text = [String.raw`[[[{{{,,,"\"`, '\\', '\\"', '],'].join('');

    expect(read(frameOf([text, { [text]: text }]), { depth: 2, nodes: 4 })).toEqual([
      text,
      { [text]: text },
    ]);
  });

  it('[11] The bytes of elements are swapped on a big-endian machine', async () => {
    const { blockAt, blockSection, placesOf, writeSections, lengthOf } = await bigEndianBlocks();
    for (const [type, data, expected] of [
      ['uint8', Uint8Array.of(1, 2), '0102'],
      ['int16', Int16Array.of(0x0102), '0102'],
      ['float32', Float32Array.of(1), '3f800000'],
      ['int64', BigInt64Array.of(1n), '0000000000000001'],
    ] as const) {
      const sections = [
        { code: 129, dims: [0], data: '', size: 1, length: 0 },
        blockSection({ type, dims: [data.length], data }),
      ];
      const bytes = Buffer.from(new ArrayBuffer(lengthOf(sections)));
      writeSections(bytes, 0, sections);
      const [, place] = placesOf(bytes, 2, 0, bytes.length, limits);

      expect(bytes.toString('hex', place!.at, place!.at + place!.length)).toBe(expected);
      expect(blockAt(bytes, place!)).toEqual({ type, dims: [data.length], data });
    }
  });
});

/** A big-endian machine. */
async function bigEndianBlocks(): Promise<
  typeof import('../../../../lib/extensions/distribution/wire/frame.js')
> {
  jest.resetModules();
  jest.unstable_mockModule('node:os', () => ({ ...os, endianness: () => 'BE' }));
  return import('../../../../lib/extensions/distribution/wire/frame.js');
}
