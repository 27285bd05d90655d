import { describe, expect, it } from '@jest/globals';
import { Batch, contentHash, InvalidInputError, Tensor } from 'nestjs-serving';
import { floats, sixOfEachType } from '../../fixtures/values/tensors.js';

class Account {
  constructor(readonly id: number) {}
}

describe('contentHash', () => {
  it('Primitives of different types that print alike have different hashes', () => {
    expectAllDifferent([
      1,
      '1',
      1n,
      true,
      'true',
      null,
      'null',
      undefined,
      'undefined',
      0,
      -0,
      '',
      [],
      {},
      [1],
      { 0: 1 },
    ]);
  });

  it('The order of entries does not change the hash', () => {
    expect(contentHash({ a: 1, b: [2] })).toBe(contentHash({ b: [2], a: 1 }));
    // prettier-ignore
    expect(contentHash(new Map<unknown, unknown>([['a', 1], ['b', {}]]))).toBe(contentHash(new Map<unknown, unknown>([['b', {}], ['a', 1]])));
    expect(contentHash(new Set([1, 2]))).toBe(contentHash(new Set([2, 1])));
  });

  it('A missing entry and an undefined entry have different hashes', () => {
    // oxlint-disable-next-line no-sparse-arrays -- a hole is what is asked about
    expectAllDifferent([{}, { a: undefined }, [1, , 2], [1, undefined, 2], [1, 2]]);
  });

  it('Values whose parts concatenate to the same text have different hashes', () => {
    const header = Buffer.from('[object Uint8Array] 1:', 'utf16le');
    expectAllDifferent(['\ud800', '\udc00', '\ufffd']);
    expectAllDifferent([['a', 'sb'], ['as', 'b'], ['a', 's1:b'], 's1:a']); // prettier-ignore
    expectAllDifferent([[['a'], 'b'], [['a', 'b']], [[], 'a', 'b'], ['a', 'b']]); // prettier-ignore
    expectAllDifferent([
      { a: { b: 'x' }, c: 'y' },
      { a: { b: 'x', c: 'y' } },
      ['a', { b: 'x' }, 'c', 'y'],
    ]);
    expectAllDifferent([
      [bytesOf(1, header, 2), bytesOf(3)],
      [bytesOf(1), bytesOf(2, header, 3)],
    ]);
    // oxlint-disable-next-line no-sparse-arrays -- a hole is what is asked about
    expectAllDifferent([[1, , 2], [1, NaN, 2]]); // prettier-ignore
  });

  it('Tensors with different type, shape or elements have different hashes', () => {
    const changed = sixOfEachType.map(({ type, data }) => new Tensor(type, data.slice(), [2, 3]));
    const other = sixOfEachType.map(({ type, data }) => new Tensor(type, data.toReversed(), [6]));
    expectAllDifferent([...sixOfEachType, ...changed, ...other]);
  });

  it('Tensors with the same type, shape and elements have equal hashes, wherever their memory lies', () => {
    for (const { type, data, dims } of sixOfEachType) {
      const copy = Array.isArray(data) ? [...data] : partOfLarger(data);
      expect(contentHash(new Tensor(type, copy, dims))).toBe(
        contentHash(new Tensor(type, data, dims)),
      );
    }
  });

  it('A tensor of another copy of onnxruntime-common has the hash of a tensor', () => {
    class Foreign {
      readonly type = 'float32';
      readonly dims = [2];
      readonly data = Float32Array.of(1, 2);
    }
    expect(contentHash(new Foreign())).toBe(contentHash(floats([2], [1, 2])));
  });

  it('Typed arrays with different class or bytes have different hashes', () => {
    const zeros = new ArrayBuffer(8);
    const shared = new Uint8Array(new SharedArrayBuffer(8)).fill(1);
    expectAllDifferent([
      zeros,
      new DataView(zeros),
      new Uint8Array(zeros),
      new Int8Array(zeros),
      new Float64Array(zeros),
      [0],
      shared,
    ]);
    expect(contentHash(shared)).toBe(contentHash(new Uint8Array(8).fill(1)));
  });

  it('Batches with different rows, key or padding have different hashes', () => {
    const rows = Batch.ofContainer(floats([2, 2], [1, 2, 3, 4]));
    const axis = Batch.ofContainer(floats([2, 2], [1, 2, 3, 4]), { '': 1 });
    expectAllDifferent([
      Batch.empty(),
      Batch.ofValues([1, 2]),
      Batch.ofValues([1]),
      rows,
      axis,
      rows.withKey('other'),
      rows.pad(1),
      rows.slice(0, 1),
      floats([2, 2], [1, 2, 3, 4]),
    ]);
  });

  it('Batches with the same rows have equal hashes, in whatever items the rows arrived', () => {
    const joined = Batch.stack([floats([2], [1, 2]), floats([2], [3, 4])]);
    expect(contentHash(joined)).toBe(
      contentHash(Batch.concatenate([floats([2, 2], [1, 2, 3, 4])])),
    );
    expect(contentHash([joined])).toBe(contentHash([joined]));
  });

  it.each([
    ['a function', () => 1, 'a function'],
    ['a symbol', Symbol('one'), 'a symbol'],
    ['a function inside', { a: [() => 1] }, 'a function'],
    [
      'an entry that a plain copy would not have',
      { [Symbol('a')]: 1 },
      'an entry named by a symbol',
    ],
    [
      'an instance of a class, whose private fields would not count',
      new Account(1),
      'an instance of Account',
    ],
    ['a URL', new URL('https://example.com'), 'an instance of URL'],
    ['a promise', Promise.resolve(1), 'an instance of Promise'],
    ['a boxed number', new Number(1), 'an instance of Number'],
    ['an error', new Error('one'), 'an instance of Error'],
  ])('contentHash refuses %s', (_, input, part) => {
    expect(() => contentHash(input)).toThrow(InvalidInputError);
    expect(() => contentHash(input)).toThrow(
      `The input holds ${part}, which has no content to compare by; ` +
        'give the serving a key to compare by: deduplication.key: (input) => contentHash(...)',
    );
  });

  it.each([
    ['an object', () => Object.assign({}, { self: {} })],
    ['a list', () => []],
    ['a Map', () => new Map()],
    ['a Set', () => new Set()],
  ])('contentHash refuses %s that holds itself', (_, make) => {
    const holder: unknown = make();
    if (holder instanceof Map) {
      holder.set('self', holder);
    } else if (holder instanceof Set) {
      holder.add(holder);
    } else {
      Object.assign(holder as object, { 0: holder });
    }
    expect(() => contentHash(holder)).toThrow(InvalidInputError);
    expect(() => contentHash(holder)).toThrow(/holds itself/);
  });

  it('contentHash refuses values too deeply nested for the stack', () => {
    expect(contentHash(deep(200))).toHaveLength(43);
    expect(() => contentHash(deep(100_000))).toThrow(InvalidInputError);
  });

  it('contentHash leaves its input as it was', () => {
    const data = Float32Array.of(1, 2);
    const batch = Batch.ofContainer(new Tensor('float32', data, [2]));
    contentHash(batch);
    expect(batch.release()).toMatchObject({ data });
  });
});

const deep = (levels: number): unknown => JSON.parse('['.repeat(levels) + ']'.repeat(levels));

function expectAllDifferent(values: readonly unknown[]): void {
  const hashes = values.map((value) => contentHash(value));
  expect(new Set(hashes).size).toBe(values.length);
}

const bytesOf = (...parts: (number | Uint8Array)[]): Uint8Array =>
  Uint8Array.from(parts.flatMap((part) => (typeof part === 'number' ? part : [...part])));

function partOfLarger<T extends Exclude<Tensor['data'], string[]>>(data: T): T {
  const bytes = new Uint8Array(data.byteLength + 16).fill(7);
  bytes.set(new Uint8Array(data.buffer, data.byteOffset, data.byteLength), 8);
  const type = data.constructor as new (buffer: ArrayBuffer, offset: number, length: number) => T;
  return new type(bytes.buffer, 8, data.length);
}
