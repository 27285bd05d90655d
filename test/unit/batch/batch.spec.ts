import { describe, expect, it } from '@jest/globals';
import { Batch, InvalidBatchError, Tensor } from 'nestjs-serving';
import { floats, sixOfEachType } from '../../fixtures/values/tensors.js';

describe('Batch', () => {
  describe('stack', () => {
    it.each([
      ['plain values', ['a', { b: 1 }, null], ['a', { b: 1 }, null]],
      ['lists, which are plain values', [['a'], []], [['a'], []]],
      ['scalars', [floats([], [1]), floats([], [2])], floats([2], [1, 2])],
      ['tensors', [floats([2], [1, 2]), floats([2], [3, 4])], floats([2, 2], [1, 2, 3, 4])],
      [
        'named maps',
        [{ x: floats([1], [1]) }, { x: floats([1], [2]) }],
        { x: floats([2, 1], [1, 2]) },
      ],
      ['tuples', [[floats([], [1]), floats([1], [2])]], [floats([1], [1]), floats([1, 1], [2])]],
      ['nestings', [{ a: [{ b: floats([], [7]) }] }], { a: [{ b: floats([1], [7]) }] }],
    ])('[1.7] [2.1] stack makes a row of each item: %s', (_, items, rows) => {
      const batch = Batch.stack(items);

      expect(batch.size).toBe(items.length);
      expect(batch.consume()).toEqual(rows);
    });
  });

  describe('concatenate', () => {
    it.each([
      ['lists of plain values', [['a'], ['b', 'c']], ['a', 'b', 'c']],
      [
        'tensors',
        [floats([1, 2], [1, 2]), floats([2, 2], [3, 4, 5, 6])],
        floats([3, 2], [1, 2, 3, 4, 5, 6]),
      ],
      [
        'named maps',
        [{ x: floats([2], [1, 2]) }, { x: floats([1], [3]) }],
        { x: floats([3], [1, 2, 3]) },
      ],
      [
        'tuples',
        [[floats([2], [1, 2]), floats([2], [3, 4])]],
        [floats([2], [1, 2]), floats([2], [3, 4])],
      ],
      ['an item without rows', [floats([0, 1], []), floats([1, 1], [5])], floats([1, 1], [5])],
    ])('[1.7] [2.1] concatenate counts axis 0 of each item as rows: %s', (_, items, rows) => {
      expect(Batch.concatenate(items).consume()).toEqual(rows);
    });

    it('[1.8] Rows are joined on the axis on which they lie', () => {
      const left = { state: floats([2, 1, 2], [1, 2, 3, 4]), x: floats([1], [10]) };
      const right = {
        state: floats([2, 2, 2], [5, 6, 7, 8, 9, 10, 11, 12]),
        x: floats([2], [20, 30]),
      };

      const batch = Batch.concatenate([left, right], { state: 1 });

      expect(batch.consume()).toEqual({
        state: floats([2, 3, 2], [1, 2, 5, 6, 7, 8, 3, 4, 9, 10, 11, 12]),
        x: floats([3], [10, 20, 30]),
      });
      expect(batch.slice(1, 2).consume()).toEqual({
        state: floats([2, 1, 2], [5, 6, 9, 10]),
        x: floats([1], [20]),
      });
    });

    it('[1.8] The axis of a nested leaf is found by its path', () => {
      const state = floats([1, 2], [1, 2]);
      const item = { state: [state, { deep: state }] };

      expect(Batch.concatenate([item], { 'state.0': 1, 'state.1.deep': 1 }).size).toBe(2);
    });

    it('[1.8] A leaf that all rows share is kept once', () => {
      const rate = floats([], [16]);
      const items = [
        { rate, x: floats([2], [1, 2]) },
        { rate, x: floats([1], [3]) },
      ];

      const batch = Batch.concatenate(items, { rate: null });

      expect(batch.size).toBe(3);
      expect(batch.consume()).toEqual({ rate, x: floats([3], [1, 2, 3]) });
    });

    it.each([
      ['numbers', new Tensor('int64', [16_000n], []), new Tensor('int64', [8000n], [])],
      ['strings', new Tensor('string', ['a b', 'c'], [2]), new Tensor('string', ['a', 'b c'], [2])],
    ])('[1.8] A shared leaf with different values is refused: %s', (_, left, right) => {
      const items = [left, right].map((shared) => ({ shared, x: floats([1], [1]) }));

      expect(() => Batch.concatenate(items, { shared: null })).toThrow(InvalidBatchError);
    });
  });

  it.each(sixOfEachType)(
    '[1.7] A batch keeps $type elements unchanged and pads them with zeros',
    (tensor) => {
      const rows = new Tensor(tensor.type, tensor.data, [3, 2]);
      const [first, rest] = Batch.concatenate([rows]).split(1);
      const consumed = rest.merge(first).pad(1).consume() as Tensor;

      expect(consumed).toMatchObject({ type: tensor.type, dims: [4, 2] });
      expect(consumed.data.constructor).toBe(tensor.data.constructor);
      const elements = Array.from<unknown>(tensor.data);
      const zero = { string: '', int64: 0n, uint64: 0n }[tensor.type as string] ?? 0;
      expect([...consumed.data]).toEqual([
        ...elements.slice(2),
        ...elements.slice(0, 2),
        zero,
        zero,
      ]);
    },
  );

  it('[2.1] Extending a batch leaves the original as it was', () => {
    const batch = Batch.stack(['a']);

    expect(
      batch
        .stack(['b'])
        .concatenate([['c', 'd']])
        .consume(),
    ).toEqual(['a', 'b', 'c', 'd']);
    expect(batch.consume()).toEqual(['a']);
  });

  it('[2.1] Changing the source list does not change the batch', () => {
    const items = ['a'];
    const stacked = Batch.stack(items);
    const concatenated = Batch.concatenate([items]);

    items.push('b');

    expect(stacked.consume()).toEqual(['a']);
    expect(concatenated.consume()).toEqual(['a']);
  });

  it('[2.1] The rows of a batch, shared leaves included, lie in memory of their own', () => {
    const item = { rate: floats([], [16]), x: floats([1], [1]) };

    const { rate, x } = Batch.concatenate([item], { rate: null }).consume() as typeof item;
    rate.data[0] = x.data[0] = 0;

    expect(item).toEqual({ rate: floats([], [16]), x: floats([1], [1]) });
  });

  it('[W4] A copied batch lies in memory of its own', () => {
    const source = floats([3, 1], [1, 2, 3]);
    const copy = Batch.concatenate([source]).slice(1, 3).copy();
    (source.data as Float32Array).fill(0);

    const { data, dims } = copy.release() as Tensor;

    expect([[...(data as Float32Array)], dims]).toEqual([
      [2, 3],
      [2, 1],
    ]);
    expect((copy.release() as Tensor).data).toBe(data);
  });

  it('[2.1] A batch of one whole source is released without a copy', () => {
    const source = floats([2, 1], [1, 2]);

    const { data } = Batch.concatenate([source]).release() as { data: Float32Array };

    expect(data.buffer).toBe((source.data as Float32Array).buffer);
    expect((Batch.concatenate([source]).slice(0, 1).release() as Tensor).data).toEqual(
      Float32Array.of(1),
    );
  });

  it('[2.1] Rows that lie together are viewed without a copy', () => {
    const item = { rate: floats([], [16]), x: floats([3, 2], [1, 2, 3, 4, 5, 6]) };
    const batch = Batch.concatenate([item], { rate: null });

    const lent = batch.slice(1, 3).view() as typeof item;

    expect(lent).toEqual({ rate: floats([], [16]), x: floats([2, 2], [3, 4, 5, 6]) });
    expect((lent.rate.data as Float32Array).buffer).toBe((item.rate.data as Float32Array).buffer);
    expect((lent.x.data as Float32Array).buffer).toBe((item.x.data as Float32Array).buffer);
    expect(batch.merge(batch.slice(0, 1)).view()).toEqual({
      rate: item.rate,
      x: floats([4, 2], [1, 2, 3, 4, 5, 6, 1, 2]),
    });
    expect(
      Batch.concatenate([floats([2, 3], [1, 2, 3, 4, 5, 6])], { '': 1 })
        .slice(1, 2)
        .view(),
    ).toEqual(floats([2, 1], [2, 5]));
    expect(
      Batch.concatenate([new Tensor('string', ['a', 'b'], [2])])
        .slice(1, 2)
        .view(),
    ).toEqual(new Tensor('string', ['b'], [1]));
    expect(Batch.stack(['a', 'b']).slice(1, 2).view()).toEqual(['b']);
  });

  it('[2.2] A batch keeps its key through every operation', () => {
    const batch = Batch.stack([floats([1], [1]), floats([1], [2])]).withKey('en');
    const [first, rest] = batch.split(1);

    expect(Batch.stack(['a']).key).toBe('default');
    const derived = [
      batch.pad(1),
      first,
      rest,
      first.merge(rest),
      batch.slice(1, 2),
      batch.stack([floats([1], [3])]),
    ];
    expect(derived.map(({ key }) => key)).toEqual(derived.map(() => 'en'));
  });

  it('[2.2] Padding is added only when the batch is consumed', () => {
    const batch = Batch.stack([floats([2], [1, 2])]).pad(2);

    expect(batch).toMatchObject({ size: 1, padding: 2 });
    expect(batch.consume()).toEqual(floats([3, 2], [1, 2, 0, 0, 0, 0]));
  });

  it('[2.2] Merging adds up sizes and paddings, with the padding at the end', () => {
    const [first, second, third] = [[1, 2], [3], [4]].map((values) =>
      Batch.concatenate([floats([values.length], values)]),
    );

    const merged = Batch.merge([first!.pad(1), second!, third!.pad(2)]);

    expect(merged).toMatchObject({ size: 4, padding: 3 });
    expect(merged.consume()).toEqual(floats([7], [1, 2, 3, 4, 0, 0, 0]));
  });

  it.each([
    { at: 2, left: [1, 2], right: [3, 0, 0] },
    { at: 3, left: [1, 2, 3], right: [0, 0] },
    { at: 4, left: [1, 2, 3, 0], right: [0] },
    { at: 9, left: [1, 2, 3, 0, 0], right: undefined },
  ])('[2.2] A batch with 3 rows and 2 of padding is split after $at', ({ at, left, right }) => {
    const halves = Batch.concatenate([floats([3], [1, 2, 3])])
      .pad(2)
      .split(at);

    const values = halves.map((half) =>
      half.size + half.padding > 0 ? [...(half.consume() as Tensor).data] : undefined,
    );
    expect(values).toEqual([left, right]);
  });

  it('[2.2] A batch is cut into consecutive pieces of a maximum size', () => {
    const pieces = Batch.concatenate([
      ['a', 'b'],
      ['c', 'd', 'e'],
    ]).chunksOf(2);

    expect(pieces.map((piece) => piece.consume())).toEqual([['a', 'b'], ['c', 'd'], ['e']]);
  });

  describe('refusals', () => {
    const x = floats([1, 2], [1, 2]);
    const large = floats(
      [1025],
      Array.from({ length: 1025 }, () => 0),
    );
    it.each([
      [
        'a merge of different keys',
        () => Batch.stack([1]).merge(Batch.stack([2]).withKey('b')),
        'different keys: "default" and "b"',
      ],
      [
        'different element types',
        () => Batch.concatenate([x, new Tensor('int32', [1, 2], [1, 2])]),
        '[float32[rows, 2]] and [int32[rows, 2]]',
      ],
      [
        'different inner shapes',
        () => Batch.concatenate([x, floats([1, 3], [1, 2, 3])]),
        '[float32[rows, 2]] and [float32[rows, 3]]',
      ],
      [
        'different ranks',
        () => Batch.stack([floats([], [1]), floats([1], [1])]),
        '[float32[rows]] and [float32[rows, 1]]',
      ],
      [
        'different names',
        () => Batch.concatenate([{ a: x }, { b: x }]),
        '[a: float32[rows, 2]] and [b: float32[rows, 2]]',
      ],
      [
        'different axes',
        () => Batch.concatenate([x]).concatenate([x], { '': 1 }),
        '[float32[rows, 2]] and [float32[1, rows]]',
      ],
      [
        'plain values among tensors',
        () => Batch.stack([x, 'a']),
        '[float32[rows, 1, 2]] and [plain values]',
      ],
      [
        'different shared values',
        () =>
          Batch.concatenate([x], { '': 0 }).concatenate([{ x, n: floats([], [1]) }], { n: null }),
        '[float32[rows, 2]] and [n: float32[] = ["1"], x: float32[rows, 2]]',
      ],
      [
        'uneven rows',
        () => Batch.concatenate([{ a: x, b: floats([2], [1, 2]) }]),
        'Uneven rows: "a" has 1, "b" has 2',
      ],
      [
        'a scalar tensor in concatenate',
        () => Batch.concatenate([floats([], [1])]),
        'The tensor has the shape [] and so no axis 0',
      ],
      [
        'an axis that is not there',
        () => Batch.concatenate([{ a: x }], { a: 2 }),
        '"a" has the shape [1, 2] and so no axis 2',
      ],
      ['a plain value in concatenate', () => Batch.concatenate([7]), 'Cannot concatenate a number'],
      ['null in concatenate', () => Batch.concatenate([null]), 'Cannot concatenate null'],
      [
        'an item without any batch axis',
        () => Batch.concatenate([{ a: x }], { a: null }),
        'No leaf of the item carries rows',
      ],
      [
        'a large shared leaf',
        () => Batch.concatenate([{ a: x, large }], { large: null }),
        '"large" is shared by the rows of a batch and has 1025 elements',
      ],
      [
        'a packed tensor',
        () => Batch.concatenate([new Tensor('uint4', Uint8Array.of(0x21), [1, 2])]),
        'The tensor holds 1 elements and its shape [1, 2] needs 2',
      ],
      [
        'a tensor whose buffer has moved',
        () => Batch.concatenate([{ moved: moved() }]),
        '"moved" holds 0 elements and its shape [2, 1] needs 2',
      ],
      ['no items to stack', () => Batch.stack([]), 'An empty list has no rows'],
      ['no items to concatenate', () => Batch.concatenate([]), 'An empty list has no rows'],
      ['to consume no rows', () => Batch.empty().consume(), 'Cannot consume a batch without rows'],
      [
        'to consume no rows of tensors',
        () => Batch.concatenate([floats([0, 2], [])]).consume(),
        'Cannot consume a batch without rows',
      ],
      ['a negative padding', () => Batch.stack([x]).pad(-1), 'Cannot pad with -1 rows'],
      ['half a row of padding', () => Batch.stack([x]).pad(0.5), 'Cannot pad with 0.5 rows'],
      ['padding for plain values', () => Batch.stack(['a']).pad(1), 'Cannot pad plain values'],
      [
        'plain values for a padding',
        () => Batch.empty().pad(1).stack(['a']),
        'Cannot pad plain values',
      ],
      [
        'an axis for a name that the item lacks',
        () => Batch.concatenate([{ x, y: x }], { x: 0, z: 1 }),
        'The axes name "z", and the item has no such leaf; it has x, y',
      ],
      [
        'an axis for a name, of a bare tensor',
        () => Batch.concatenate([x], { x: 0 }),
        'The axes name "x", and the item has no such leaf; it has one without a name',
      ],
      [
        'an axis for a name that only one of the items has',
        () => Batch.concatenate([{ x }, { y: x }], { x: 0 }),
        'The axes name "x", and the item has no such leaf; it has y',
      ],
      ['to split off nothing', () => Batch.stack([x]).split(0), 'Cannot split after 0 rows'],
    ])('[2.3] A batch refuses %s', (_, make, message) => {
      expect(make).toThrow(InvalidBatchError);
      expect(make).toThrow(message);
    });
  });
});

/** A tensor whose storage went to another thread. */
function moved(): Tensor {
  const tensor = floats([2, 1], [1, 2]);
  structuredClone(tensor.data, { transfer: [(tensor.data as Float32Array<ArrayBuffer>).buffer] });
  return tensor;
}
