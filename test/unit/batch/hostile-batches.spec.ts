import { describe, expect, it, jest } from '@jest/globals';
import { Batch, type Container, InvalidBatchError, Tensor } from 'nestjs-serving';
import { flatten } from '../../../lib/core/batch/container.js';
import { floats } from '../../fixtures/values/tensors.js';

/** A value that claims to be a tensor, as JSON or code can write it. */
const claim = (tensor: object): Container =>
  ({ type: 'float32', dims: [1], data: Float32Array.of(1), size: 1, ...tensor }) as never;
/** As of ES2024. */
const shrinkable = (bytes: number): ArrayBuffer & { resize(bytes: number): void } =>
  new (ArrayBuffer as never as new (...args: unknown[]) => ReturnType<typeof shrinkable>)(bytes, {
    maxByteLength: bytes,
  });
const text = (dims: readonly unknown[], data: readonly unknown[]): Container =>
  claim({ type: 'string', dims, data });

const throws = (): never => {
  throw new TypeError('no');
};
const around = (inner: unknown, levels: number): unknown => {
  let value = inner;
  for (let i = 0; i < levels; i++) {
    value = [value];
  }
  return value;
};
const cyclic = (): unknown[] => {
  const value: unknown[] = [];
  value.push(value);
  return value;
};
/** Few objects with more paths through them than can be walked. */
const bomb = (leaf: unknown): unknown => {
  let value = leaf;
  for (let i = 0; i < 60; i++) {
    value = [value, value];
  }
  return value;
};
const sparse = (first: unknown): unknown[] => {
  const value = [first];
  value.length = 2 ** 32 - 1;
  return value;
};

describe('A value that is hard to walk', () => {
  it.each<[string, unknown]>([
    ['a list of 16 000 levels', around([], 16_000)],
    ['a list of levels with a number in it', around(1, 1000)],
    ['a list that is nearly endless and empty', sparse(undefined)],
    ['a nearly endless list with one tensor', sparse(floats([1], [1]))],
    [
      'an object with many names',
      Object.fromEntries(Array.from({ length: 1e5 }, (_, i) => [`name ${i}`, i])),
    ],
  ])('[4.9] A value that is hard to walk is a plain value: %s', (_, value) => {
    expect(flatten(value)).toBeUndefined();
  });

  it.each<[string, unknown, string]>([
    ['a list that holds itself', cyclic(), 'does it hold itself?'],
    ['a list of a million levels', around([], 1_000_000), 'does it hold itself?'],
    [
      'lists that hold the same list twice, at many levels',
      bomb(floats([1], [1])),
      'does it hold itself?',
    ],
    [
      'a tensor 501 levels deep',
      around(floats([1], [1]), 501),
      '1 tensors, 501 levels deep, are more than one item may hold',
    ],
    [
      '1025 tensors',
      Array.from({ length: 1025 }, () => floats([1], [1])),
      '1025 tensors, 1 levels deep, are more than one item may hold',
    ],
    [
      'a getter that throws',
      Object.defineProperty({}, 'x', { get: throws, enumerable: true }),
      'cannot be read: no',
    ],
    [
      'a tensor whose data throws',
      Object.defineProperty(floats([1], [1]), 'data', { get: throws }),
      'cannot be read: no',
    ],
    [
      'a proxy whose traps throw',
      new Proxy({}, { ownKeys: throws, has: throws }),
      'cannot be read: no',
    ],
    [
      'a tensor on another device',
      Tensor.fromGpuBuffer({} as never, { dims: [1], dataType: 'float32' }),
      'The data is not on CPU',
    ],
  ])('[4.9] [2.3] A value that is hard to walk is refused: %s', (_, value, message) => {
    expect(() => flatten(value)).toThrow(InvalidBatchError);
    expect(() => flatten(value)).toThrow(message);
  });

  it('[2.3] A container may have up to 32 levels and 1024 tensors', () => {
    expect(flatten(around(floats([1], [1]), 500))?.leaves).toHaveLength(1);
    expect(Batch.concatenate([Array.from({ length: 1024 }, () => floats([1], [1]))]).size).toBe(1);
  });
});

describe('A value that claims to be a tensor', () => {
  it.each<[string, Container, string]>([
    [
      'a shape that needs more elements',
      claim({ dims: [1_000_000], size: 1 }),
      'holds 1 elements and its shape [1000000] needs 1000000',
    ],
    [
      'a shape that needs fewer elements',
      claim({ dims: [1], data: Float32Array.of(1, 2), size: 2 }),
      'holds 2 elements and its shape [1] needs 1',
    ],
    [
      'a fractional axis',
      claim({ dims: [0.5, 2] }),
      'has the shape [ 0.5, 2 ]; its axes must be whole numbers',
    ],
    ['negative axes', claim({ dims: [-1, -1] }), 'has the shape [ -1, -1 ]'],
    [
      'an axis that is NaN',
      claim({ dims: [NaN], data: new Float32Array(0) }),
      'has the shape [ NaN ]',
    ],
    ['an axis that is a string', text(['1'], ['a']), "has the shape [ '1' ]"],
    ['a shape with a hole', claim({ dims: Array(1) }), 'has the shape [ undefined ]'],
    [
      'a shape whose size overflows',
      claim({ dims: [2 ** 53, 2 ** 53, 0], data: new Float32Array(0) }),
      'has the shape',
    ],
    [
      'a thousand axes',
      claim({ dims: Array(1000).fill(1) }),
      'has 1000 axes; at most 32 are allowed',
    ],
    [
      'the data of another type',
      claim({ data: Uint8Array.of(1) }),
      'is a float32 tensor and its data is',
    ],
    [
      'a view without elements',
      claim({ data: new DataView(new ArrayBuffer(4)) }),
      'holds undefined elements',
    ],
    ['a type that does not exist', claim({ type: 'float9' }), 'is a float9 tensor and its data is'],
    [
      'a type named like an object member',
      claim({ type: 'constructor' }),
      'is a constructor tensor and its data is',
    ],
    [
      'a number among strings',
      text([2], ['a', 1]),
      'is a string tensor and holds 1 at 1; give strings',
    ],
    [
      'holes among strings',
      text([2 ** 32 - 1], sparse('a')),
      'is a string tensor and holds undefined at 1; give strings',
    ],
  ])('[4.9] [2.3] A value that claims to be a tensor is refused for %s', (_, tensor, message) => {
    for (const make of [
      () => Batch.concatenate([tensor]),
      () => Batch.ofContainer({ x: tensor }),
    ]) {
      expect(make).toThrow(InvalidBatchError);
      expect(make).toThrow(message);
    }
    expect(() => Batch.stack([tensor])).toThrow(InvalidBatchError);
  });

  it('[1.7] A consistent tensor of any class is accepted', () => {
    const batch = Batch.concatenate([
      claim({ data: Buffer.from([7]), type: 'uint8' }),
      new Tensor('uint8', [8], [1]),
    ]);

    expect(batch.consume()).toEqual(new Tensor('uint8', [7, 8], [2]));
  });

  it.each<[string, (tensor: { dims: number[]; type: string; data: unknown }) => void]>([
    ['its shape', (tensor) => tensor.dims.fill(1000)],
    ['its type', (tensor) => (tensor.type = 'int8')],
    [
      'the method that cuts its data',
      (tensor) => Object.assign(tensor.data as object, { subarray: throws }),
    ],
    [
      'the class of its data',
      (tensor) => Object.assign(tensor.data as object, { constructor: throws }),
    ],
  ])('[4.6] [6.1] A change to %s after the call harms no other row of the batch', (_, change) => {
    const tensor = { type: 'float32', dims: [1, 2], data: Float32Array.of(1, 2) };
    const batch = Batch.concatenate([tensor]);

    change(tensor);

    expect(Batch.merge([batch, Batch.concatenate([floats([1, 2], [3, 4])])]).consume()).toEqual(
      floats([2, 2], [1, 2, 3, 4]),
    );
  });

  it('[4.6] [6.1] A string tensor keeps the strings that it had at the call', () => {
    const strings = ['a', 'b'];
    const batch = Batch.concatenate([{ tags: text([2], strings) }]);

    strings.fill('c');

    expect(batch.consume()).toEqual({ tags: new Tensor('string', ['a', 'b'], [2]) });
  });

  it('[4.6] [6.1] A container keeps the structure that it had at the call', () => {
    const item: Record<string, Container> = { x: floats([1], [1]) };
    const batch = Batch.concatenate([item]);

    delete item['x'];

    expect(batch.consume()).toEqual({ x: floats([1], [1]) });
  });

  it('[4.6] A tensor is read once, so that nothing changes between check and use', () => {
    let reads = 0;
    const shifty = Object.defineProperty(claim({}), 'dims', {
      get: () => (reads++ < 2 ? [1] : [1000]),
    });

    const batch = Batch.ofContainer(shifty);

    expect([batch.size, batch.consume()]).toEqual([1, floats([1], [1])]);
  });
});

describe('Memory that is detached while rows wait', () => {
  it('[4.9] A batch reports detached memory of its own rows and of no others', () => {
    const [gone, safe] = [floats([2, 1], [1, 2]), floats([1, 1], [3])];
    const [lost, kept] = [Batch.concatenate([gone]), Batch.concatenate([safe])];
    expect([lost, kept, lost.merge(kept)].map(({ isIntact }) => isIntact)).toEqual([
      true,
      true,
      true,
    ]);

    structuredClone(gone.data, { transfer: [(gone.data as Float32Array).buffer as ArrayBuffer] });

    expect(
      [lost, lost.slice(1, 2), kept, lost.merge(kept)].map(({ isIntact }) => isIntact),
    ).toEqual([false, false, true, false]);
    expect([Batch.stack(['a']), Batch.empty()].map(({ isIntact }) => isIntact)).toEqual([
      true,
      true,
    ]);
  });

  it('[2.1] A merged batch discloses nothing of the memory that it was allocated in', () => {
    const dirty = jest
      .spyOn(Buffer, 'allocUnsafeSlow')
      .mockImplementation((length) => Buffer.alloc(length, 0xff));
    try {
      const pieces = [[1, 2], [3], []].map((row) =>
        Batch.concatenate([floats([row.length, 1], row)]),
      );
      expect(Batch.merge(pieces).consume()).toEqual(floats([3, 1], [1, 2, 3]));
      expect(Batch.merge(pieces).pad(2).consume()).toEqual(floats([5, 1], [1, 2, 3, 0, 0]));
      const buffer = shrinkable(4);
      const merged = Batch.merge([
        ...pieces,
        Batch.concatenate([new Tensor('float32', new Float32Array(buffer), [1, 1])]),
      ]);
      buffer.resize(0);
      expect(merged.consume()).toEqual(floats([4, 1], [1, 2, 3, 0]));
    } finally {
      dirty.mockRestore();
    }
  });
});

describe('A batch', () => {
  it.each<[string, () => unknown, string]>([
    [
      'a string',
      () => Batch.stack('abc' as never),
      'a list of at most 16777216 items, and not of "abc"',
    ],
    [
      'an object with a length',
      () => Batch.concatenate({ length: 1e9 } as never),
      'and not of { length: 1000000000 }',
    ],
    ['null', () => Batch.stack(null as never), 'and not of null'],
    ['a nearly endless list', () => Batch.stack(sparse(1)), 'and not of a list of 4294967295'],
    [
      'a nearly endless element',
      () => Batch.concatenate([sparse(1)]),
      'and not of a list of 4294967295',
    ],
    ['nearly endless values', () => Batch.ofValues(sparse(1)), 'and not of a list of 4294967295'],
  ])('[2.3] A batch refuses %s as its items', (_, make, message) => {
    expect(make).toThrow(InvalidBatchError);
    expect(make).toThrow(message);
  });

  it.each([[Symbol('key')], [{}], [null], ['k'.repeat(1025)]])(
    '[4.7] A batch refuses the key %p',
    (key) => {
      expect(() => Batch.stack([1]).withKey(key as never)).toThrow(
        'The key of a batch is a string of at most 1024 characters',
      );
    },
  );

  it('[2.1] A batch merges another with very many items', () => {
    const row = floats([1], [1]);
    const many = Batch.concatenate(Array.from({ length: 200_000 }, () => row));

    expect(Batch.concatenate([row]).merge(many).size).toBe(200_001);
  });

  it('[2.2] Tensors without elements are not copied, for any length of their axes', () => {
    const none = new Tensor('float32', new Float32Array(0), [2 ** 52, 1, 0]);
    const rate = floats([], [1]);

    expect(Batch.concatenate([none], { '': 1 }).consume()).toEqual(none);
    expect(() => Batch.ofContainer({ none, rate }, { rate: null })).toThrow(
      'An item has 4503599627370496 rows and no elements',
    );
    expect(Batch.concatenate([new Tensor('float32', new Float32Array(0), [65_536, 0])]).size).toBe(
      65_536,
    );
  });

  it('[4.6] Rows that share 0 and rows that share -0 do not batch together', () => {
    const [zero, minus] = [0, -0].map((rate) =>
      Batch.ofContainer({ x: floats([1], [1]), rate: floats([], [rate]) }, { rate: null }),
    );

    expect(zero!.signature).not.toBe(minus!.signature);
  });

  it.each<[string, () => unknown]>([
    ['a name', () => Batch.ofContainer({ ['n'.repeat(100_000)]: floats([1], [1]) })],
    [
      'a name shared by many leaves',
      () =>
        Batch.ofContainer({
          ['n'.repeat(20_000)]: Array.from({ length: 1000 }, () => floats([1], [1])),
        }),
    ],
    [
      'a shared value',
      () =>
        Batch.ofContainer(
          { x: floats([1], [1]), tag: new Tensor('string', ['t'.repeat(100_000)], [1]) },
          { tag: null },
        ),
    ],
  ])('[2.3] A batch is refused with a short message when %s would need much memory', (_, make) => {
    expect(make).toThrow(InvalidBatchError);
    expect(messageOf(make).length).toBeLessThan(600);
  });

  it.each<[string, () => unknown]>([
    [
      'types',
      () =>
        Batch.merge(
          ['a', 'b'].map((name) => Batch.ofContainer({ [name.repeat(30_000)]: floats([1], [1]) })),
        ),
    ],
    [
      'keys',
      () => Batch.merge(['a', 'b'].map((key) => Batch.stack([1]).withKey(key.repeat(1000)))),
    ],
    ['element types', () => Batch.ofContainer(claim({ type: 'x'.repeat(1e6) }))],
    ['rows', () => Batch.ofContainer({ ['n'.repeat(30_000)]: floats([], [1]) })],
  ])('[6.5] The error message is short for hostile %s', (_, make) => {
    expect(messageOf(make).length).toBeLessThan(700);
  });

  it('[2.3] Leaves with the names of object members never reach the prototype', () => {
    const names = [
      '__proto__',
      'constructor',
      'toString',
      'hasOwnProperty',
      '0',
      '',
      'a.b',
      '\ud800',
    ];
    const item = JSON.parse(
      `{${names.map((name) => `${JSON.stringify(name)}: 0`).join()}}`,
    ) as Record<string, Container>;
    names.forEach((name, i) =>
      Object.defineProperty(item, name, { value: floats([1], [i]), enumerable: true }),
    );

    const rows = Batch.ofContainer(item).consume();

    expect(Object.keys(rows).toSorted()).toEqual(names.toSorted());
    expect(
      names.map((name) => Object.getOwnPropertyDescriptor(rows, name)!.value as Tensor),
    ).toEqual(names.map((_, i) => floats([1], [i])));
    expect('dims' in Object.prototype).toBe(false);
  });
});

describe('The bytes of a batch', () => {
  it.each<[string, Batch, number]>([
    ['of numbers', Batch.concatenate([floats([2, 3], [1, 2, 3, 4, 5, 6])]), 24],
    [
      'of some of its rows',
      Batch.concatenate([floats([2, 3], [1, 2, 3, 4, 5, 6])]).slice(0, 1),
      12,
    ],
    ['of rows of many items', Batch.stack([floats([2], [1, 2]), floats([2], [1, 2])]), 16],
    [
      'of leaves',
      Batch.ofContainer({ x: floats([2], [1, 2]), ids: new Tensor('int64', [1n, 2n], [2]) }),
      24,
    ],
    [
      'of leaves that the rows share',
      Batch.ofContainer({ x: floats([2], [1, 2]), rate: floats([], [1]) }, { rate: null }),
      12,
    ],
    ['of strings', Batch.concatenate([new Tensor('string', ['a', 'ä'], [2])]), 3],
    ['of plain values', Batch.stack(['a', 'b']), 0],
    ['of an empty batch', Batch.empty(), 0],
  ])('[7.1] The bytes of a batch are those %s', (_, batch, bytes) => {
    expect(batch.bytes).toBe(bytes);
  });
});

function messageOf(make: () => unknown): string {
  try {
    make();
  } catch (error) {
    return (error as Error).message;
  }
  throw new Error('Nothing was refused');
}
