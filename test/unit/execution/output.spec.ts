import { describe, expect, it } from '@jest/globals';
import { Batch, InvalidOutputError } from 'nestjs-serving';
import { isTensor } from '../../../lib/core/batch/tensor.js';
import { outputRows } from '../../../lib/core/execution/batch-run.js';
import { copyOutput } from '../../../lib/core/execution/request.js';
import { floats } from '../../fixtures/values/tensors.js';

const plain = Batch.stack(['a', 'b']);
const tensors = Batch.concatenate([floats([2, 1], [1, 2])]);
const padded = tensors.pad(2);
const rows = (count: number) =>
  floats(
    [count, 1],
    Array.from({ length: count }, (_, i) => i),
  );

const withTable = (fill: number) => ({
  y: rows(2),
  table: floats(
    [2000],
    Array.from({ length: 2000 }, () => fill),
  ),
});

describe('outputRows', () => {
  it.each([
    ['a list', plain, ['A', 'B'], ['A', 'B']],
    ['a list of lists', plain, [[1], []], [[1], []]],
    [
      'a list with a tensor for each row',
      plain,
      [floats([3], [1, 2, 3]), floats([1], [4])],
      [floats([3], [1, 2, 3]), floats([1], [4])],
    ],
    ['tensors', plain, { y: rows(2) }, { y: rows(2) }],
    ['a list for tensors', tensors, ['A', 'B'], ['A', 'B']],
    ['a tuple of tensors for tensors', tensors, [rows(2), rows(2)], [rows(2), rows(2)]],
    ['tensors with rows for the padding', padded, rows(4), rows(2)],
    ['a list with results for the padding', padded, ['A', 'B', '', ''], ['A', 'B']],
  ])(
    '[2.2] [6.3] An output with one result per row is accepted: %s',
    (_, input, output, expected) => {
      const taken = outputRows(output, input);

      expect(taken.size).toBe(2);
      expect(taken.consume()).toEqual(expected);
    },
  );

  it('[1.8] An output without a batch axis may have any size and value, also when a call was split', () => {
    const parts = [1, 2].map((fill) => outputRows(withTable(fill), tensors, { table: null }));

    expect(Batch.merge(parts).consume()).toEqual({
      y: floats([4, 1], [0, 1, 0, 1]),
      table: withTable(1).table,
    });
  });

  it('[1.8] Rows are cut on the declared axis, and outputs without a batch axis are shared', () => {
    const output = { y: floats([1, 2], [1, 2]), scale: floats([], [0.5]) };

    expect(outputRows(output, tensors, { y: 1, scale: null }).slice(1, 2).consume()).toEqual({
      y: floats([1, 1], [2]),
      scale: floats([], [0.5]),
    });
  });

  it.each([
    [
      'a short list',
      plain,
      ['A'],
      {},
      'A batch of 2 rows needs 2 results; the batch function returned 1',
    ],
    [
      'a long list',
      plain,
      ['A', 'B', 'C'],
      {},
      'A batch of 2 rows needs 2 results; the batch function returned 3',
    ],
    [
      'a list without results for the padding',
      padded,
      ['A', 'B'],
      {},
      'A batch of 4 rows needs 4 results; the batch function returned 2',
    ],
    [
      'text',
      plain,
      'AB',
      {},
      'needs a list of 2 results, or tensors with 2 rows; the batch function returned string',
    ],
    ['nothing', plain, undefined, {}, 'the batch function returned undefined'],
    ['null', plain, null, {}, 'the batch function returned null'],
    ['an object', plain, { y: 1 }, {}, 'the batch function returned object'],
    [
      'too many rows',
      tensors,
      rows(3),
      {},
      'Output has the shape [3, 1]; axis 0 must have the 2 rows of the batch',
    ],
    [
      'no leading axis',
      tensors,
      { y: floats([], [1]) },
      {},
      'Output "y" has the shape []; axis 0 must have the 2 rows',
    ],
    [
      'rows on another axis',
      tensors,
      { y: floats([1, 2], [1, 2]) },
      { y: 0 },
      'If its rows lie on another axis, declare it: outputs: { y: { batchAxis: ... } }',
    ],
    [
      'rows that are not on the axis declared',
      tensors,
      { y: rows(2) },
      { y: 1 },
      'Output "y" has the shape [2, 1]; axis 1 must have the 2 rows',
    ],
    [
      'no rows at all',
      tensors,
      { y: floats([], [1]) },
      { y: null },
      'Unusable output: no leaf of it carries the 2 rows of the batch',
    ],
  ])(
    '[6.3] An invalid output is refused with the expected and the actual output: %s',
    (_, input, output, axes, message) => {
      const take = (): Batch => outputRows(output, input, axes);

      expect(take).toThrow(InvalidOutputError);
      expect(take).toThrow(message);
    },
  );
});

it("[M8] The refusal of a function's output names no option that only models have", () => {
  expect(() => outputRows({ y: floats([1, 2], [1, 2]) }, tensors)).toThrow(
    /must have the 2 rows of the batch$/,
  );
});

describe('copyOutput', () => {
  it.each([
    [
      'tensors that are the whole of an output',
      Batch.ofOutput({ y: rows(2), table: floats([3], [1, 2, 3]) }, { table: null }),
    ],
    ['rows of tensors', Batch.ofOutput({ y: rows(4) }).slice(1, 3)],
    ['plain values', Batch.ofValues([{ list: [1] }, { tensor: rows(1) }])],
  ])('Each caller gets a copy of its own of %s', (_, output) => {
    const [one, other] = [copyOutput(output), copyOutput(output)];
    expect(one).toEqual(output.consume());
    expect(other).toEqual(one);
    expect(
      partsOf(one).filter((part) =>
        [...partsOf(other), ...partsOf(output.release())].includes(part),
      ),
    ).toEqual([]);
  });

  it('[6.2] The error in place of a row is thrown', () => {
    const error = new Error('no such row');
    expect(() => copyOutput(Batch.ofValues([1, error]))).toThrow(error);
  });

  it('A row that cannot be copied is refused, also when there is one caller', () => {
    expect(() => copyOutput(Batch.ofValues([new URL('https://example.com')]))).toThrow(
      InvalidOutputError,
    );
  });
});

/** The objects that could be changed: the elements and the shape of tensors. */
function partsOf(value: unknown): unknown[] {
  if (isTensor(value)) {
    return [value, value.data, value.dims];
  }
  return typeof value === 'object' && value !== null
    ? [value, ...Object.values(value).flatMap(partsOf)]
    : [];
}
