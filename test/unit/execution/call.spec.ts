import { Batch, InvalidBatchError, InvalidServingError } from 'nestjs-serving';
import { RowReader } from '../../../lib/core/batch/batch.js';
import { describe, expect, it } from '@jest/globals';
import { type Call, finishCall, prepareCall } from '../../../lib/core/execution/caller-side.js';
import { floats } from '../../fixtures/values/tensors.js';

const name = 'embedder';
const x = floats([2, 1], [1, 2]);

/** The rows of a call that has them at once. */
const batchOf = ({ rows }: Call): Batch => (rows instanceof Batch ? rows : Batch.empty());

describe('prepareCall', () => {
  it.each([
    ['a batch', Batch.stack(['a', 'b']), ['a', 'b'], false],
    ['a tensor', x, x, false],
    ['a map of tensors', { x }, { x }, false],
    ['text', 'a', ['a'], true],
    ['a list, which is one plain row', ['a', 'b'], [['a', 'b']], true],
    ['a map that is not all tensors', { x, language: 'en' }, [{ x, language: 'en' }], true],
    ['nothing', undefined, [undefined], true],
  ])('[1.7] Without preprocess the input becomes rows: %s', async (_, input, rows, single) => {
    const call = await prepareCall({ name }, input);

    expect(call).toMatchObject({ single, info: undefined });
    expect(batchOf(call).consume()).toEqual(rows);
  });

  it('[1.8] Rows of tensors are counted on the batch axes of the model', async () => {
    const call = await prepareCall(
      { name },
      { x, state: floats([1, 2], [3, 4]) },
      new RowReader({ state: 1 }),
    );

    expect(batchOf(call).size).toBe(2);
  });

  it.each([
    ['at once', () => ({ batch: Batch.stack(['a', 'b', 'c']), info: 3 })],
    ['later', async () => ({ batch: Batch.stack(['a', 'b', 'c']), info: 3 })],
  ])('[1.5] The call uses the batch and info that preprocess returns %s', async (_, preprocess) => {
    const call = await prepareCall({ name, preprocess }, 'abc');

    expect(call).toMatchObject({ single: false, isOpen: false, info: 3 });
    expect(batchOf(call).consume()).toEqual(['a', 'b', 'c']);
  });

  it.each([
    ['no batch', () => ({ tokens: [1, 2] }), 'it returned { tokens: [ 1, 2 ] }'],
    ['nothing', () => undefined, 'it returned undefined'],
    ['null', async () => null, 'it returned null'],
    ['text', () => 'abc', 'it returned "abc"'],
  ])(
    '[1.5] An error shows what preprocess must return when it returned %s',
    async (_, preprocess, message) => {
      const call = async (): Promise<unknown> =>
        prepareCall({ name, preprocess: preprocess as never }, 'abc');

      await expect(call).rejects.toThrow(InvalidServingError);
      await expect(call).rejects.toThrow(
        `Serving "embedder": preprocess must return { batch, info? }, ${message}`,
      );
    },
  );

  it('[2.3] A scalar tensor is refused, since it has no rows', () => {
    expect(() => prepareCall({ name }, floats([], [1]))).toThrow(InvalidBatchError);
  });
});

describe('finishCall', () => {
  const call = { rows: Batch.stack(['a']), single: false, isOpen: false, info: undefined };
  const result = { isSplit: false, metadata: undefined } as const;

  it('[1.5] Without postprocess the reply is the output', () => {
    expect(finishCall({ name }, call, ['A'], result)).toEqual(['A']);
    expect(finishCall({ name }, { ...call, single: true, isOpen: false }, ['A'], result)).toBe('A');
    expect(finishCall({ name }, { ...call, single: true, isOpen: false }, x, result)).toBe(x);
  });

  it('[1.5] [1.6] postprocess receives the output, the metadata of the batch and the info of preprocess', async () => {
    const callbacks = { name, postprocess: async (...given: unknown[]) => given };

    const reply = await finishCall(callbacks, { ...call, info: 3 }, ['A'], {
      ...result,
      metadata: 'v2',
    });

    expect(reply).toEqual([['A'], { isSplit: false, metadata: 'v2', info: 3 }]);
  });
});
