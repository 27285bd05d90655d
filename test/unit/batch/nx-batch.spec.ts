import { describe, expect, it } from '@jest/globals';
import { Batch, InvalidBatchError, Tensor } from 'nestjs-serving';
import { floats } from '../../fixtures/values/tensors.js';

const numbers = (...values: number[]): Tensor => floats([values.length], values);
/** The rows, the padding and the values of a half of a batch. */
const facts = (half: Batch) => [
  half.size,
  half.padding,
  half.size + half.padding > 0 && half.size > 0 ? half.consume() : undefined,
];

describe('Batch, like Nx.Batch', () => {
  it('[2.1] A batch stacks items as rows and concatenates further rows in order', () => {
    const stacked = Batch.stack([numbers(1, 2, 3), numbers(4, 5, 6)]);
    const batch = stacked.concatenate([floats([2, 3], [11, 12, 13, 14, 15, 16])]);

    expect([stacked.size, batch.size]).toEqual([2, 4]);
    expect(batch.consume()).toEqual(floats([4, 3], [1, 2, 3, 4, 5, 6, 11, 12, 13, 14, 15, 16]));
  });

  it('[2.1] A batch stacks further items onto concatenated rows', () => {
    const batch = Batch.concatenate([floats([1, 2], [1, 2])]).stack([numbers(3, 4)]);

    expect(batch.consume()).toEqual(floats([2, 2], [1, 2, 3, 4]));
  });

  it('[1.7] [2.1] Maps and tuples are batched leaf by leaf', () => {
    const item = (n: number) => [numbers(n), { b: numbers(n + 1, n + 2) }];

    expect(Batch.stack([item(1), item(4)]).consume()).toEqual([
      floats([2, 1], [1, 4]),
      { b: floats([2, 2], [2, 3, 5, 6]) },
    ]);
    expect(
      Batch.concatenate([
        [numbers(1), numbers(2)],
        [numbers(3, 4), numbers(5, 6)],
      ]).consume(),
    ).toEqual([numbers(1, 3, 4), numbers(2, 5, 6)]);
  });

  it('A batch is a value, which no method changes', () => {
    const batch = Batch.stack([numbers(1)]);
    batch.stack([numbers(2)]);
    batch.pad(3);
    batch.withKey('other');
    batch.merge(batch);
    batch.split(1);

    expect([batch.size, batch.padding, batch.key]).toEqual([1, 0, 'default']);
  });

  describe('merge', () => {
    it('[2.2] Merging no batches gives an empty batch', () => {
      expect(Batch.merge([])).toEqual(Batch.empty());
    });

    it('[2.2] Merging adds up paddings, also of batches without rows', () => {
      expect(Batch.merge([Batch.empty().pad(2), Batch.empty().pad(3)]).padding).toBe(5);
    });

    it('[2.2] Merging with a batch without rows changes nothing', () => {
      const batch = Batch.stack([numbers(1, 2, 3), numbers(4, 5, 6)]);

      expect(Batch.empty().merge(batch)).toEqual(batch);
      expect(batch.merge(Batch.empty())).toEqual(batch);
    });

    it('[2.2] Merging joins rows from left to right, with all padding at the end', () => {
      const batches = [
        Batch.concatenate([numbers(1, 2)]).pad(1),
        Batch.concatenate([numbers(3)]).pad(1),
      ];

      const merged = Batch.merge(batches);

      expect([merged.size, merged.padding, merged.consume()]).toEqual([
        3,
        2,
        numbers(1, 2, 3, 0, 0),
      ]);
    });

    it('[2.2] [2.3] Merging refuses different keys and templates, and names both', () => {
      const batch = Batch.stack([numbers(1, 2)]);

      expect(() => batch.merge(batch.withKey('other'))).toThrow(
        new InvalidBatchError('Cannot merge batches of different keys: "default" and "other"'),
      );
      expect(() => batch.merge(Batch.stack([numbers(1, 2, 3)]))).toThrow(
        new InvalidBatchError(
          'Cannot merge rows of different templates: [float32[rows, 2]] and [float32[rows, 3]]',
        ),
      );
    });
  });

  describe('split', () => {
    const padded = Batch.concatenate([numbers(1, 2), numbers(3, 4, 5)]);

    it.each([
      [5, [5, 0, numbers(1, 2, 3, 4, 5)], [0, 3, undefined]],
      [6, [5, 1, numbers(1, 2, 3, 4, 5, 0)], [0, 2, undefined]],
      [10, [5, 3, numbers(1, 2, 3, 4, 5, 0, 0, 0)], [0, 0, undefined]],
    ])(
      '[2.2] Splitting after %i of 5 rows with padding of 3 puts padding into the left half',
      (count, left, right) => {
        expect(padded.pad(3).split(count).map(facts)).toEqual([left, right]);
      },
    );

    it.each([
      [1, [1, 0, numbers(1)], [4, 1, numbers(2, 3, 4, 5, 0)]],
      [2, [2, 0, numbers(1, 2)], [3, 1, numbers(3, 4, 5, 0)]],
      [3, [3, 0, numbers(1, 2, 3)], [2, 1, numbers(4, 5, 0)]],
      [4, [4, 0, numbers(1, 2, 3, 4)], [1, 1, numbers(5, 0)]],
    ])(
      '[2.2] Splitting after %i of 5 rows leaves all padding to the right half',
      (count, left, right) => {
        expect(padded.pad(1).split(count).map(facts)).toEqual([left, right]);
      },
    );

    it('[1.7] [2.2] Splitting divides containers leaf by leaf', () => {
      const batch = Batch.concatenate([
        [numbers(11, 12), numbers(21, 22)],
        [numbers(13, 14, 15), numbers(23, 24, 25)],
      ]).pad(1);

      expect(batch.split(3).map(facts)).toEqual([
        [3, 0, [numbers(11, 12, 13), numbers(21, 22, 23)]],
        [2, 1, [numbers(14, 15, 0), numbers(24, 25, 0)]],
      ]);
    });

    it('[2.2] Both halves keep key and template, also a half without rows', () => {
      const halves = padded.withKey('long').split(5);

      expect(halves.map(({ key, signature }) => [key, signature])).toEqual([
        ['long', 'float32[rows]'],
        ['long', 'float32[rows]'],
      ]);
    });

    it.each([0, -1, 1.5])('[2.3] Splitting after %d rows is refused', (count) => {
      expect(() => padded.split(count)).toThrow(InvalidBatchError);
    });
  });

  describe('padding', () => {
    it('[2.2] Padding is set and not added, and appears only when the batch is consumed', () => {
      const batch = Batch.concatenate([numbers(1)])
        .pad(5)
        .pad(2);

      expect([batch.size, batch.padding, batch.consume()]).toEqual([1, 2, numbers(1, 0, 0)]);
    });

    it('[2.2] Padding has the type of the tensor', () => {
      expect(
        Batch.concatenate([new Tensor('int64', [7n], [1])])
          .pad(1)
          .consume(),
      ).toEqual(new Tensor('int64', [7n, 0n], [2]));
    });

    it.each([-1, 0.5])('[2.3] Padding of %d rows is refused', (count) => {
      expect(() => Batch.stack([numbers(1)]).pad(count)).toThrow(InvalidBatchError);
    });
  });

  describe('[2.3] refusals', () => {
    it.each<[string, () => unknown, string | RegExp]>([
      [
        'when it has no rows and is consumed',
        () => Batch.empty().consume(),
        'Cannot consume a batch without rows',
      ],
      [
        'when items to stack differ in shape',
        () => Batch.stack([numbers(1, 2, 3), numbers(4, 5)]),
        /templates: \[float32\[rows, 3\]\] and \[float32\[rows, 2\]\]/,
      ],
      [
        'when items to concatenate differ in their inner shape',
        () => Batch.concatenate([floats([1, 3], [1, 2, 3]), floats([1, 2], [4, 5])]),
        /templates: \[float32\[rows, 3\]\] and \[float32\[rows, 2\]\]/,
      ],
      [
        'when items differ in type',
        () => Batch.stack([numbers(1), new Tensor('int32', [1], [1])]),
        /templates: \[float32\[rows, 1\]\] and \[int32\[rows, 1\]\]/,
      ],
      [
        'when containers differ in their names',
        () => Batch.concatenate([{ a: numbers(1) }, { b: numbers(1) }]),
        /templates: \[a: float32\[rows\]\] and \[b: float32\[rows\]\]/,
      ],
      [
        'when items do not fit the batch that they extend',
        () => Batch.stack([numbers(1, 2)]).stack([numbers(1)]),
        /templates: \[float32\[rows, 2\]\] and \[float32\[rows, 1\]\]/,
      ],
      [
        'when scalars are concatenated',
        () => Batch.concatenate([floats([], [1])]),
        /has the shape \[\] and so no axis 0/,
      ],
      [
        'when plain values are concatenated',
        () => Batch.concatenate([1]),
        /Cannot concatenate a number: it has no rows/,
      ],
      [
        'when the leaves of a container have different numbers of rows',
        () => Batch.concatenate([{ a: numbers(1, 2), b: numbers(1) }]),
        'Uneven rows: "a" has 2, "b" has 1; all leaves of one item need the same number',
      ],
      [
        'when there are no items',
        () => Batch.stack([]),
        'An empty list has no rows; give at least one item',
      ],
    ])('A batch is refused %s', (_, make, message) => {
      expect(make).toThrow(InvalidBatchError);
      expect(make).toThrow(message);
    });
  });
});
