import { describe, expect, it } from '@jest/globals';
import {
  Batch,
  InvalidBatchError,
  InvalidServingError,
  type LocalServing,
  type PostprocessContext,
  withMetadata,
} from 'nestjs-serving';
import { useServings } from '../../fixtures/serving/use-servings.js';
import { floats } from '../../fixtures/values/tensors.js';

const x = floats([2, 1], [1, 2]);

const postprocess = async (
  output: unknown,
  { isSplit, metadata, info }: PostprocessContext,
): Promise<object> => ({ output, isSplit, metadata, info });

describe('A call', () => {
  const serve = useServings();

  /** Answers with its rows, of which it keeps the last ones. */
  async function echo(callbacks: object = {}): Promise<[LocalServing, () => unknown]> {
    let seen: unknown;
    const useFactory = () => (rows: unknown) => {
      seen = rows;
      return withMetadata(rows, 'v2');
    };
    const serving = await serve({ name: 'embedder', model: { useFactory }, ...callbacks });
    return [serving, () => seen];
  }

  it.each<[string, unknown, unknown, unknown]>([
    ['a batch', Batch.stack(['a', 'b']), ['a', 'b'], ['a', 'b']],
    ['a tensor', x, x, x],
    ['a map of tensors', { x }, { x }, { x }],
    ['text', 'a', ['a'], 'a'],
    ['a list, which is one plain row', ['a', 'b'], [['a', 'b']], ['a', 'b']],
    [
      'a map that is not all tensors',
      { x, language: 'en' },
      [{ x, language: 'en' }],
      { x, language: 'en' },
    ],
    ['nothing', undefined, [undefined], undefined],
  ])(
    '[1.5] [1.7] Without preprocess the input becomes rows, and without postprocess the output is the reply: %s',
    async (_, input, rows, reply) => {
      const [serving, seen] = await echo();

      expect(await serving.batchedRun(input)).toEqual(reply);
      expect(seen()).toEqual(rows);
    },
  );

  it.each([
    ['at once', () => ({ batch: Batch.stack(['a', 'b', 'c']), info: 3 })],
    ['later', async () => ({ batch: Batch.stack(['a', 'b', 'c']), info: 3 })],
  ])(
    '[1.5] [1.6] It uses the batch that preprocess returns %s, and postprocess gets the output, the metadata and the info',
    async (_, preprocess) => {
      const [serving, seen] = await echo({ preprocess, postprocess });

      expect(await serving.batchedRun('abc')).toEqual({
        output: ['a', 'b', 'c'],
        isSplit: false,
        metadata: 'v2',
        info: 3,
      });
      expect(seen()).toEqual(['a', 'b', 'c']);
    },
  );

  it.each([
    ['no batch', () => ({ tokens: [1, 2] }), 'it returned { tokens: [ 1, 2 ] }'],
    ['nothing', () => undefined, 'it returned undefined'],
    ['null', async () => null, 'it returned null'],
    ['text', () => 'abc', 'it returned "abc"'],
  ])(
    '[1.5] An error shows what preprocess must return when it returned %s',
    async (_, preprocess, message) => {
      const [serving] = await echo({ preprocess });
      const error = await serving.batchedRun('abc').catch((reason: unknown) => reason);

      expect(error).toBeInstanceOf(InvalidServingError);
      expect((error as Error).message).toContain(
        `Serving "embedder": preprocess must return { batch, info? }, ${message}`,
      );
    },
  );

  it('[2.3] A scalar tensor is refused, since it has no rows', async () => {
    const [serving] = await echo();

    await expect(serving.batchedRun(floats([], [1]))).rejects.toBeInstanceOf(InvalidBatchError);
  });
});
