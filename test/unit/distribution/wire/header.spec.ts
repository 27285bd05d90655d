import { describe, expect, it } from '@jest/globals';
import { encodeFrame } from '../../../../lib/extensions/distribution/wire/frame.js';
import { HeaderReader, SentHeader } from '../../../../lib/extensions/distribution/wire/header.js';
import { defaultWireLimits } from '../../../../lib/extensions/distribution/wire/limits.js';
import {
  FrameError,
  headLength,
  Kind,
} from '../../../../lib/extensions/distribution/wire/prelude.js';

const limits = defaultWireLimits;

const frameOf = (header: object): Buffer => Buffer.from(encodeFrame({ kind: Kind.cancel, header }));

const read = (reader: HeaderReader, frame: Buffer): unknown =>
  reader.read(frame, headLength(frame));

describe('The header of a frame', () => {
  it('[11] is encoded once for each receiver, with the addresses of both nodes', () => {
    const header = new SentHeader({ serving: 'm' });
    const [a, b, all] = [header.bytes('me', 'a'), header.bytes('me', 'b'), header.bytes('me')];

    expect([a, b, all].map(String)).toEqual([
      '{"from":"me","to":"a","serving":"m"}',
      '{"from":"me","to":"b","serving":"m"}',
      '{"from":"me","serving":"m"}',
    ]);
    expect(header.bytes('me', 'a')).toBe(a);
  });

  it('[11] is kept for no more than 1024 receivers', () => {
    const header = new SentHeader({});
    const first = header.bytes('me', 'node-0');
    for (let i = 1; i <= 1024; i++) {
      header.bytes('me', `node-${i}`);
    }

    expect(header.bytes('me', 'node-0')).not.toBe(first);
    expect(header.bytes('me', 'node-0')).toEqual(first);
  });

  it('[11] is parsed once while it comes again, and each other one is another', () => {
    const reader = new HeaderReader(limits);
    const headers = [{ a: 1 }, { a: 2 }, { ä: 1 }, { 'Ã¤': 1 }, { a: '1' }];
    const first = headers.map((header) => read(reader, frameOf(header)));

    expect(first).toEqual(headers);
    headers.forEach((header, i) => expect(read(reader, frameOf(header))).toBe(first[i]));
  });

  it('[11] is not kept when it is long, or after 256 others', () => {
    const reader = new HeaderReader(limits);
    const long = frameOf({ a: 'b'.repeat(600) });
    const short = frameOf({ a: 'b' });
    const kept = read(reader, short);
    expect(read(reader, long)).not.toBe(read(reader, long));
    for (let i = 0; i < 256; i++) {
      read(reader, frameOf({ i }));
    }

    expect(read(reader, short)).not.toBe(kept);
    expect(read(reader, short)).toEqual(kept);
  });

  it('[11] is refused each time when it is invalid', () => {
    const reader = new HeaderReader(limits);
    const frame = frameOf([1]);

    expect(() => read(reader, frame)).toThrow(FrameError);
    expect(() => read(reader, frame)).toThrow(FrameError);
  });
});
