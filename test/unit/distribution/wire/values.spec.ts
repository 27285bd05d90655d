import { runInNewContext } from 'node:vm';
import { describe, expect, it } from '@jest/globals';
import * as fc from 'fast-check';
import {
  Batch,
  InvalidInputError,
  OverloadedError,
  RequestTooLargeError,
  Tensor,
} from 'nestjs-serving';
import {
  defaultWireLimits,
  type WireLimits,
} from '../../../../lib/extensions/distribution/wire/limits.js';
import { FrameError } from '../../../../lib/extensions/distribution/wire/prelude.js';
import { decodeValue, encodeValue } from '../../../../lib/extensions/distribution/wire/values.js';
import { compareInvalidDates } from '../../../fixtures/values/invalid-dates.js';
import { values } from '../../../fixtures/cluster/wire-values.js';

compareInvalidDates();

const encode = (value: unknown, limits: Partial<WireLimits> = {}) =>
  encodeValue(value, { ...defaultWireLimits, ...limits });
const decode = (tree: unknown, limits: Partial<WireLimits> = {}) =>
  decodeValue(tree, [], { ...defaultWireLimits, ...limits });

/** The value after encoding and decoding. */
const cross = (value: unknown): unknown => {
  const { text, blocks } = encode(value);
  return decodeValue(JSON.parse(text), blocks, defaultWireLimits);
};

class Point {
  x = 1;
  readonly #hidden = 2;

  get sum(): number {
    return this.x + this.#hidden;
  }
}

class Teller {
  tell = (): number => 1;
}

const nested = (levels: number): unknown =>
  Array.from({ length: levels }).reduce((inner) => [inner], 1);

describe('encodeValue and decodeValue', () => {
  it('[11] Any value is encoded and decoded', () => {
    fc.assert(fc.property(values, (value) => expect(cross(value)).toEqual(value)));
  });

  it.each([
    NaN,
    Infinity,
    -Infinity,
    -0,
    0,
    undefined,
    null,
    true,
    -(2n ** 70n),
    0n,
    'text',
    '\ud800',
  ])('[11] The value %p is encoded and decoded', (value) => {
    expect(cross(value)).toBe(value);
    expect(cross({ a: [value] })).toStrictEqual({ a: [value] });
  });

  it('[11] undefined differs from an absent property, and holes of lists become undefined', () => {
    expect(cross({ a: undefined })).toStrictEqual({ a: undefined });
    expect(cross(Object.assign([], { length: 3, 1: 1 }))).toStrictEqual([undefined, 1, undefined]);
  });

  it('[11] Names that look like tags are kept', () => {
    const value = { $t: 0, $$t: { $n: 'NaN' }, $: 1, a$: 2 };

    expect(JSON.parse(encode(value).text)).toEqual({ $$t: 0, $$$t: { $$n: 'NaN' }, $$: 1, a$: 2 });
    expect(cross(value)).toStrictEqual(value);
  });

  it('[11] A value in two places is decoded as two values', () => {
    const shared = { of: Float32Array.of(1, 2) };
    const [left, right] = cross([shared, shared]) as (typeof shared)[];

    expect([left, right]).toEqual([shared, shared]);
    expect(left).not.toBe(right);
  });

  it('[11] Tensors and typed arrays are encoded without a copy', () => {
    const tensor = new Tensor('float32', Float32Array.of(1, 2, 3, 4).subarray(1, 3), [2]);
    const bytes = new Uint8Array(8).subarray(3);
    const { blocks } = encode({ tensor, bytes });

    expect(blocks.map(({ data: { buffer, byteOffset } }) => ({ buffer, byteOffset }))).toEqual([
      { buffer: tensor.data.buffer, byteOffset: 4 },
      { buffer: bytes.buffer, byteOffset: 3 },
    ]);
    expect(blocks[0]!.data.buffer).toBe(tensor.data.buffer);
    expect(blocks[1]!.data.buffer).toBe(bytes.buffer);
  });

  it('[11] A Buffer is decoded as bytes, and plain data of another realm as data of this one', () => {
    expect(cross(Buffer.from('ab'))).toStrictEqual(Uint8Array.of(97, 98));
    expect(
      cross(
        runInNewContext(
          '({ a: [new Date(5)], b: Object.create(null), c: new Uint16Array(1), d: new ArrayBuffer(1) })',
        ),
      ),
    ).toEqual({
      a: [new Date(5)],
      b: {},
      c: new Uint16Array(1),
      d: new ArrayBuffer(1),
    });
  });

  it('[11] A value that looks like a tensor of an unknown type is plain data', () => {
    const picture = { type: 'image', dims: [1], data: Uint8Array.of(1) };

    expect(cross(picture)).toStrictEqual(picture);
  });

  it('[11] A batch of plain values keeps its key', () => {
    const batch = cross(
      Batch.ofValues(['a', NaN, new Tensor('int64', [1n], [])]).withKey('$k'),
    ) as Batch;

    expect(batch).toBeInstanceOf(Batch);
    expect([batch.key, batch.padding, batch.isPlain]).toEqual(['$k', 0, true]);
    expect(batch.consume()).toEqual(['a', NaN, new Tensor('int64', [1n], [])]);
  });

  it('[11] A batch of tensors keeps key, axes and padding', () => {
    const item = {
      a: { b: new Tensor('float32', [1, 2, 3, 4, 5, 6], [3, 2]) },
      c: new Tensor('int32', [1, 2], [2]),
      d: new Tensor('bool', [true], [1]),
    };
    const sent = Batch.concatenate([item, item], { 'a.b': 1, d: null })
      .withKey('long')
      .pad(3)
      .slice(1, 4);
    const batch = cross({ batch: sent }) as { batch: Batch };

    expect(batch.batch.signature).toBe(sent.signature);
    expect([batch.batch.key, batch.batch.size, batch.batch.padding]).toEqual(['long', 3, 3]);
    expect(batch.batch.consume()).toEqual(sent.consume());
  });

  it('[11] A batch without rows is encoded and decoded', () => {
    const batch = cross(Batch.empty().withKey('k')) as Batch;

    expect([batch.key, batch.size, batch.padding]).toEqual(['k', 0, 0]);
    expect((cross(Batch.ofValues([])) as Batch).size).toBe(0);
  });

  it('[11] A batch whose memory was detached and inconsistent tensors are refused', () => {
    const data = Float32Array.of(1, 2);
    const batch = Batch.stack([new Tensor('float32', data, [2])]);
    const tensor = new Tensor('float32', data, [2]);
    structuredClone(data, { transfer: [data.buffer] });

    expect(() => encode({ batch })).toThrow('The memory of a batch has been taken away');
    expect(() => encode({ a: tensor })).toThrow(
      'The value at "a" cannot cross to another node: The tensor holds 0 elements and its shape [2] needs 2',
    );
  });

  it('[11] [6.5] Errors keep class, code and cause, and lose their stacks', () => {
    const error = new OverloadedError('full', { retryAfter: 3, cause: new TypeError('deep') });
    const { text } = encode([error]);
    const [came] = cross([error]) as [OverloadedError];

    expect(text).not.toContain('stack');
    expect(came).toBeInstanceOf(OverloadedError);
    expect(came).toMatchObject({ message: 'full', code: 'SERVING_OVERLOADED', retryAfter: 3 });
    expect(came.cause).toMatchObject({ name: 'TypeError', message: 'deep' });
  });

  it.each<[string, unknown, string]>([
    [
      'a function',
      { rows: [1, { f: () => 1 }] },
      'The value at "rows.1.f" cannot cross to another node: it is a function',
    ],
    ['a symbol', Symbol('s'), 'The value cannot cross to another node: it is a symbol'],
    [
      'an instance of a class with a function',
      [new Teller()],
      'The value at "0.tell" cannot cross to another node',
    ],
    ['a URL', new URL('http://localhost'), 'an instance of URL'],
    ['a Map', { a: new Map() }, 'an instance of Map'],
    ['a Set', new Set(), 'an instance of Set'],
    ['a promise', Promise.resolve(), 'an instance of Promise'],
    ['a DataView', new DataView(new ArrayBuffer(1)), 'an instance of DataView'],
    ['shared memory', new SharedArrayBuffer(1), 'an instance of SharedArrayBuffer'],
    [
      'a name that would become a prototype',
      { a: JSON.parse('{"__proto__":1}') as unknown },
      'The value at "a.__proto__" cannot cross',
    ],
    [
      'a tensor of too many axes',
      [
        new Tensor(
          'int8',
          [1],
          Array.from({ length: 17 }, () => 1),
        ),
      ],
      'give at most 16 axes',
    ],
    [
      'strings of too many axes',
      new Tensor(
        'string',
        ['a'],
        Array.from({ length: 17 }, () => 1),
      ),
      'give at most 16 axes',
    ],
    [
      'a tensor with too long an axis',
      new Tensor('int8', [], [0, 2 ** 33]),
      'each shorter than 2 ** 32',
    ],
    ['a value that is too deep', nested(65), 'it is deeper than 64 levels'],
  ])('[11] A value that cannot cross is refused with its path: %s', (_, value, message) => {
    expect(() => encode(value)).toThrow(InvalidInputError);
    expect(() => encode(value)).toThrow(message);
  });

  it('[11] An instance of a class, such as a DTO, is decoded as a plain object', () => {
    const [came] = cross([new Point()]) as [object];

    expect(came).toStrictEqual({ x: 1 });
    expect(Object.getPrototypeOf(came)).toBe(Object.prototype);
  });

  it('[11] Values that hold themselves or cannot be read are refused', () => {
    const self: unknown[] = [];
    self.push({ self, again: self });
    const unreadable = {
      a: {
        get b(): number {
          throw new Error('no');
        },
      },
    };

    expect(() => encode(self)).toThrow('does the value hold itself?');
    expect(() => encode(unreadable)).toThrow('The value at "a.b" cannot cross to another node: no');
  });

  it.each<[string, unknown, Partial<WireLimits>]>([
    ['parts', [1, 2, 3], { nodes: 3 }],
    ['parts, in a list that is all holes', Object.assign([], { length: 2 ** 32 - 1 }), {}],
    ['tensors', [Uint8Array.of(1), Uint8Array.of(1)], { tensors: 1 }],
    ['bytes of typed arrays', [new Float64Array(2)], { bytes: 15 }],
    ['bytes of strings', { a: 'abcdef' }, { bytes: 6 }],
    ['bytes of text', Array.from({ length: 10 }, () => 0.123456789), { bytes: 120 }],
    ['bytes of text and typed arrays', ['abc', new Uint8Array(10)], { bytes: 24 }],
  ])('[11] A value with too many %s is refused', (_, value, limits) => {
    expect(() => encode(value, limits)).toThrow(RequestTooLargeError);
  });

  it('[11] The limits count parts and levels as the encoder does', () => {
    const value = [[1, -0, { a: [] }], 'x', [NaN]];
    const fits = { nodes: 11, depth: 4 };

    expect(decode(JSON.parse(encode(value, fits).text), fits)).toEqual(value);
    for (const limits of [{ nodes: 10 }, { depth: 3 }]) {
      expect(() => encode(value, limits)).toThrow();
      expect(() => decode(JSON.parse(encode(value).text), limits)).toThrow(FrameError);
    }
  });

  const bytes = { type: 'uint8', dims: [2], data: Uint8Array.of(1, 2) } as const;

  it.each<[string, unknown, (typeof bytes)[]]>([
    ['an unknown tag', { $x: 1 }, []],
    ['a tag named as a method', { $constructor: 1 }, []],
    ['a tag beside a name', { $n: 'NaN', a: 1 }, []],
    ['two tags', { $n: 'NaN', $u: 0 }, []],
    ['an invalid number', { $n: '1' }, []],
    ['an invalid bigint', { $i: '1n' }, []],
    ['a bigint without digits', { $i: '-' }, []],
    ['an invalid date', { $d: '2020' }, []],
    ['a missing block', { $t: 0 }, []],
    ['a block that is named like a property', { $t: 'length' }, []],
    ['a block twice', [{ $a: 0 }, { $a: 0 }], [bytes]],
    ['a block without a reference', 1, [bytes]],
    ['invalid strings', { $s: [[1], [1]] }, []],
    ['too few strings', { $s: [[2, 2], ['a']] }, []],
    ['strings of no shape', { $s: [[-1], []] }, []],
    ['strings of too many axes', { $s: [Array.from({ length: 17 }, () => 1), ['a']] }, []],
    ['an error without a message', { $e: { name: 'Error' } }, []],
    ['an error with a stack', { $e: { name: 'Error', message: '', stack: '' } }, []],
    ['an error with an invalid cause', { $e: { name: 'Error', message: '', cause: 1 } }, []],
    ['an error that is a list', { $e: [] }, []],
    ['a batch without a key', { $r: { padding: 0 } }, []],
    ['a batch of negative padding', { $r: { key: '', padding: -1, values: [1] } }, []],
    [
      'a batch of infinite padding',
      { $r: { key: '', padding: 2 ** 31, tensors: { $t: 0 }, axes: [0] } },
      [bytes],
    ],
    ['a batch of padded values', { $r: { key: '', padding: 1, values: [1] } }, []],
    [
      'a batch of two kinds',
      { $r: { key: '', padding: 0, values: [1], tensors: { $t: 0 }, axes: [0] } },
      [bytes],
    ],
    ['a batch without axes', { $r: { key: '', padding: 0, tensors: { $t: 0 } } }, [bytes]],
    [
      'a batch of too many axes',
      { $r: { key: '', padding: 0, tensors: { $t: 0 }, axes: [0, 0] } },
      [bytes],
    ],
    [
      'a batch on a missing axis',
      { $r: { key: '', padding: 0, tensors: { $t: 0 }, axes: [1] } },
      [bytes],
    ],
    [
      'a batch of invalid tensors',
      { $r: { key: '', padding: 0, tensors: { a: 1 }, axes: [] } },
      [],
    ],
    [
      'a batch in a batch',
      { $r: { key: '', padding: 0, tensors: { $r: { key: '', padding: 0 } }, axes: [0] } },
      [],
    ],
  ])('[11] Invalid encoded data is refused: %s', (_, tree, blocks) => {
    expect(() => decodeValue(tree, blocks, defaultWireLimits)).toThrow(FrameError);
  });

  it('[11] A name that would become a prototype is refused', () => {
    expect(() => decode(JSON.parse('{"a":{"__proto__":{"polluted":1}}}'))).toThrow(FrameError);
    expect(({} as { polluted?: number }).polluted).toBeUndefined();
  });
});
