import { describe, expect, it } from '@jest/globals';
import {
  type Container,
  InvalidBatchError,
  InvalidInputError,
  InvalidServingError,
  lengthBuckets,
  Tensor,
} from 'nestjs-serving';
import { floats, sixOfEachType } from '../../fixtures/values/tensors.js';
import { useServings } from '../../fixtures/serving/use-servings.js';

describe('lengthBuckets', () => {
  it.each([
    [[], 'there is none'],
    [[0, 4], '0 cannot stand at 0'],
    [[4, -8], '-8 cannot stand at 1'],
    [[4, 4], '4 cannot stand at 1'],
    [[8, 4], '4 cannot stand at 1'],
    [[4, 8.5], '8.5 cannot stand at 1'],
    [[4, NaN], 'NaN cannot stand at 1'],
    [[4, '8' as never], '"8" cannot stand at 1'],
    [[4, undefined as never], 'undefined cannot stand at 1'],
  ])('[4.7] The buckets %j are refused', (lengths, reason) => {
    const make = () => lengthBuckets(lengths);

    expect(make).toThrow(InvalidServingError);
    expect(make).toThrow(`${reason}; give whole numbers above 0, each larger than the one before`);
  });

  it('[4.7] An unknown mode for rows that are too long is refused', () => {
    expect(() => lengthBuckets([4], { tooLong: 'cut' as never })).toThrow(
      new InvalidServingError(`Length buckets with tooLong: "cut"; give 'refuse' or 'truncate'`),
    );
  });
});

describe('LengthBuckets', () => {
  const buckets = lengthBuckets([2, 4, 8]);
  const cutting = lengthBuckets([2, 4, 8], { tooLong: 'truncate' });
  const start = useServings();

  it('[4.7] Each length has a key', () => {
    expect(buckets.keys).toEqual(['2', '4', '8']);
  });

  it('[4.7] Rows run in batches with rows of their own bucket alone', async () => {
    const shapes: (readonly number[])[] = [];
    const serving = await start<Tensor>({
      name: 'same',
      batchKeys: buckets.keys,
      useFactory: () => (rows: Tensor) => {
        shapes.push(rows.dims);
        return rows;
      },
      preprocess: (values: number[]) => ({
        batch: buckets.batch(floats([1, values.length], values)),
      }),
    });

    const replies = await Promise.all(
      [[1], [1, 2, 3], [5, 6], [4, 5, 6, 7]].map((values) => serving.batchedRun(values)),
    );

    expect(replies.map(({ data }) => [...(data as Float32Array)])).toEqual([
      [1, 0],
      [1, 2, 3, 0],
      [5, 6],
      [4, 5, 6, 7],
    ]);
    expect(shapes).toEqual([
      [2, 2],
      [2, 4],
    ]);
  });

  describe('fit', () => {
    it.each([
      [0, 2],
      [1, 2],
      [2, 2],
      [3, 4],
      [8, 8],
    ])('[4.7] A length of %d fits the bucket of %d', (length, bucket) => {
      expect(buckets.fit(length)).toEqual({ key: String(bucket), length: bucket });
    });

    it('[4.7] A length above the largest bucket is refused with advice', () => {
      expect(() => buckets.fit(9)).toThrow(
        new InvalidInputError(
          'A length of 9 is more than the largest bucket, 8; ' +
            `shorten the input, add a larger bucket, or set tooLong: 'truncate'`,
        ),
      );
    });

    it('[4.7] A length above the largest bucket fits that bucket when rows are truncated', () => {
      expect(cutting.fit(9)).toEqual({ key: '8', length: 8 });
    });

    it.each([-1, 1.5, NaN, Infinity])(
      '[4.7] A length of %d is refused, with and without truncation',
      (length) => {
        expect(() => cutting.fit(length)).toThrow(InvalidInputError);
      },
    );
  });

  describe('batch', () => {
    it.each(sixOfEachType.map((tensor) => [tensor.type, tensor] as const))(
      '[4.7] Rows of %s are padded',
      (_, { type, data }) => {
        const rows = new Tensor(type, data, [2, 3]);
        const batch = buckets.batch(rows);
        const padded = batch.consume() as Tensor;
        const zero = type === 'string' ? '' : typeof data[0] === 'bigint' ? 0n : 0;

        expect(batch).toMatchObject({ key: '4', size: 2 });
        expect(padded).toMatchObject({ type, dims: [2, 4] });
        expect([...padded.data]).toEqual([
          ...[...data].slice(0, 3),
          zero,
          ...[...data].slice(3),
          zero,
        ]);
      },
    );

    it.each(sixOfEachType.map((tensor) => [tensor.type, tensor] as const))(
      '[4.7] Rows of %s are truncated',
      (_, { type, data }) => {
        const short = lengthBuckets([1, 2], { tooLong: 'truncate' });
        const cut = short.batch(new Tensor(type, data, [2, 3])).consume() as Tensor;

        expect(cut).toMatchObject({ type, dims: [2, 2] });
        expect([...cut.data]).toEqual([data[0], data[1], data[3], data[4]]);
      },
    );

    it('[4.7] Rows above the largest bucket are refused without truncation', () => {
      expect(() => buckets.batch(floats([1, 9], [1, 2, 3, 4, 5, 6, 7, 8, 9]))).toThrow(
        'A length of 9 is more than',
      );
    });

    it('[4.7] Every leaf is padded on the same axis with its own element', () => {
      const image = floats([1, 3, 2], [1, 2, 3, 4, 5, 6]);
      const ids = new Tensor('int64', [7n, 8n, 9n], [1, 3]);
      const words = new Tensor('string', ['a', 'b', 'c'], [1, 3]);
      const fill = { image: -0.5, 'words.0': '[PAD]', ids: 1 };
      const item = { image, ids, words: [words] };
      const padded = buckets.batch(item, { axis: 1, fill }).consume() as {
        image: Tensor;
        ids: Tensor;
        words: [Tensor];
      };

      expect(padded.image).toMatchObject({
        dims: [1, 4, 2],
        data: Float32Array.of(1, 2, 3, 4, 5, 6, -0.5, -0.5),
      });
      expect(padded.ids).toMatchObject({ dims: [1, 4], data: BigInt64Array.of(7n, 8n, 9n, 1n) });
      expect(padded.words[0]).toMatchObject({ dims: [1, 4], data: ['a', 'b', 'c', '[PAD]'] });
    });

    it('[4.7] A leaf without the padded axis stays as it is', () => {
      const item = { audio: floats([1, 3], [1, 2, 3]), rate: floats([1], [16]) };
      const padded = buckets.batch(item).consume() as { audio: Tensor; rate: Tensor };

      expect(padded.audio.dims).toEqual([1, 4]);
      expect(padded.rate).toMatchObject({ dims: [1], data: Float32Array.of(16) });
    });

    it('[4.7] Padding leaves the item as it was', () => {
      const values = floats([1, 3], [1, 2, 3]);
      buckets.batch(values, { fill: { '': 5 } }).consume() as Tensor;

      expect(values).toMatchObject({ dims: [1, 3], data: Float32Array.of(1, 2, 3) });
    });

    it.each<[string, unknown, object, string]>([
      [
        'leaves of different length',
        { a: floats([1, 2], [1, 2]), b: floats([1, 1], [1]) },
        {},
        '"a" has 2 on axis -1, "b" has 1',
      ],
      [
        'leaves with different rows',
        { a: floats([1, 2], [1, 2]), b: floats([2, 1], [1, 2]) },
        {},
        '"a" has 1, "b" has 2',
      ],
      ['an item that has only rows', floats([3], [1, 2, 3]), {}, 'No leaf has a length on axis -1'],
      [
        'the axis of the rows',
        floats([1, 2], [1, 2]),
        { axis: 0 },
        'No leaf has a length on axis 0',
      ],
      ['a list of plain values', ['text'], {}, 'Plain values have no length'],
      ['a plain value', 'text', {}, 'a string'],
      [
        'a buffer that was given away',
        given(floats([1, 3], [1, 2, 3])),
        {},
        'was its buffer transferred',
      ],
      [
        'a filling for no leaf',
        { ids: floats([1, 2], [1, 2]) },
        { fill: { id: 1 } },
        'no leaf "id" to fill; there are: "ids"',
      ],
    ])('[4.7] Buckets refuse %s', (_, item, options, message) => {
      const make = () => buckets.batch(item as Container, options);

      expect(make).toThrow(InvalidBatchError);
      expect(make).toThrow(message);
    });

    it.each([
      ['int8', 200],
      ['int32', 1.5],
      ['int64', 1.5],
      ['uint64', -1],
      ['float32', 'a'],
      ['float32', 1n],
      ['string', 1],
    ] as const)('[4.7] A tensor of %s refuses the fill element %p', (type, fill) => {
      const { data } = sixOfEachType.find((tensor) => tensor.type === type)!;
      const make = () =>
        buckets.batch({ x: new Tensor(type, data, [2, 3]) }, { fill: { x: fill } });

      expect(make).toThrow(InvalidBatchError);
      expect(make).toThrow(`which is no element of a ${type} tensor`);
    });

    it.each([
      ['int64', 3, 3n],
      ['int64', 3n, 3n],
      ['float32', 0.1, Math.fround(0.1)],
      ['float32', -1, -1],
      ['float32', -Infinity, -Infinity],
      ['float32', NaN, NaN],
      ['bool', 1, 1],
    ] as const)('[4.7] A tensor of %s accepts the fill element %p', (type, fill, expected) => {
      const { data } = sixOfEachType.find((tensor) => tensor.type === type)!;
      const padded = buckets
        .batch(new Tensor(type, data, [2, 3]), { fill: { '': fill } })
        .consume() as Tensor;

      expect(padded.data[3]).toEqual(expected);
    });
  });
});

/** The tensor after its data went to another thread. */
function given(tensor: Tensor): Tensor {
  structuredClone(tensor.data, { transfer: [(tensor.data as Float32Array).buffer as ArrayBuffer] });
  return tensor;
}
