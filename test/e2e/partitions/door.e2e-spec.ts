import { describe, expect, it } from '@jest/globals';
import { type BatchEndEvent, InvalidBatchError, InvalidInputError, Tensor } from 'nestjs-serving';
import { echoModel, value } from '../../fixtures/models/models.js';
import { floats } from '../../fixtures/values/tensors.js';
import { useServings } from '../../fixtures/serving/use-servings.js';

const sentences = (rows: number, length: number, width = 3): Tensor =>
  floats([rows, length, width], Array(rows * length * width).fill(1));
const masks = (rows: number, length: number): Tensor =>
  new Tensor('int64', new BigInt64Array(rows * length), [rows, length]);
const good = { words: sentences(1, 2), mask: masks(1, 2) };

describe('The admission of rows to a model', () => {
  const serve = useServings();

  it.each<[string, unknown, new () => Error, string]>([
    [
      'the wrong element type',
      { ...good, mask: floats([1, 2], [0, 0]) },
      InvalidInputError,
      '"mask" is float32 and must be int64',
    ],
    [
      'the wrong number of axes',
      { ...good, mask: masks(1, 2).reshape([1, 2, 1]) },
      InvalidInputError,
      '"mask" has 3 axes and must have 2',
    ],
    [
      'a fixed axis of another length',
      { ...good, words: sentences(1, 2, 4) },
      InvalidInputError,
      'axis 2 of "words" is 4 and must be 3',
    ],
    [
      'axes of one name that disagree',
      { ...good, mask: masks(1, 5) },
      InvalidInputError,
      'axis 1 of "mask" is 5 and must be 2',
    ],
    ['an input too few', { words: good.words }, InvalidInputError, '"mask" is missing'],
    [
      'an input too many',
      { ...good, tone: floats([1], [0]) },
      InvalidInputError,
      'the model has no input "tone"',
    ],
    [
      'an input of another name',
      { words: good.words, maks: good.mask },
      InvalidInputError,
      '"mask" is missing',
    ],
    ['a bare tensor for two inputs', good.words, InvalidInputError, '"words" is missing'],
    ['a plain value', 'what is this?', InvalidInputError, 'these are no tensors'],
    ['a tuple', [good.words, good.mask], InvalidInputError, '"words" is missing'],
    [
      'uneven rows',
      { ...good, mask: masks(2, 2) },
      InvalidBatchError,
      'Uneven rows: "mask" has 2, "words" has 1',
    ],
    ['no rows', { words: sentences(0, 2), mask: masks(0, 2) }, InvalidBatchError, 'without rows'],
  ])(
    '[4.9] Invalid rows are refused alone, and the calls around them are served together: %s',
    async (_, bad, type, message) => {
      const words = value('float32', 'batch', 'length', 3);
      const serving = await serve({
        name: 'reader',
        model: echoModel({ words, mask: value('int64', 'batch', 'length') }),
      });
      const batches: BatchEndEvent[] = [];
      serving.eventsOf('batch:end').subscribe((event) => batches.push(event));

      const [first, refused, last] = await Promise.allSettled(
        [good, bad, good].map((input) => serving.batchedRun(input)),
      );

      expect([first, last].map((reply) => reply!.status)).toEqual(['fulfilled', 'fulfilled']);
      expect(batches).toEqual([expect.not.objectContaining({ error: expect.anything() })]);
      expect(batches).toMatchObject([{ rows: 2 }]);
      const { reason } = refused as PromiseRejectedResult;
      expect(reason).toBeInstanceOf(type);
      expect(reason).toMatchObject({ statusCode: 400, message: expect.stringContaining(message) });
      await expect(serving.run(bad)).rejects.toThrow(message);
    },
  );

  it('[4.9] The refusal shows what the model takes and what it was given', async () => {
    const serving = await serve({
      name: 'reader',
      model: echoModel({ x: value('float32', 'batch', 'length', 3) }),
    });

    await expect(serving.batchedRun({ x: sentences(4, 2, 5) })).rejects.toThrow(
      'Serving "reader" takes [x: float32[batch, length, 3]] and was given [x: float32[rows, 2, 5]]: axis 2 of "x" is 5 and must be 3',
    );
  });

  it.each(['', '?'])('[4.9] Axes named "%s", which is no name, may differ', async (name) => {
    const x = value('float32', 'batch', name, name);
    const serving = await serve({ name: 'reader', model: echoModel({ x }) });

    expect(await serving.batchedRun({ x: sentences(1, 2, 5) })).toEqual({
      same_x: sentences(1, 2, 5),
    });
  });

  it('[4.9] Rows of different lengths batch apart', async () => {
    const serving = await serve({
      name: 'reader',
      model: echoModel({ x: value('float32', 'batch', 'length', 3) }),
    });
    const inputs = [2, 5, 2, 7, 5].map((length) => sentences(1, length));
    const sizes: number[] = [];
    serving.eventsOf('batch:end').subscribe(({ rows }) => sizes.push(rows));

    const replies = await Promise.all(inputs.map((x) => serving.batchedRun({ x })));

    expect(replies).toEqual(inputs.map((x) => ({ same_x: x })));
    expect(sizes).toEqual([2, 2, 1]);
  });

  it('[P1] A string with NUL, which the runtime would cut, is refused alone', async () => {
    const serving = await serve({
      name: 'texts',
      model: echoModel({ x: value('string', 'batch') }),
    });
    const call = (...texts: string[]) =>
      serving.batchedRun({ x: new Tensor('string', texts, [texts.length]) });

    const [whole, cut, end] = await Promise.allSettled([
      call('a', 'ä'),
      call('b', 'c\0d'),
      call('\0'),
    ]);

    expect(whole).toMatchObject({ value: { same_x: { data: ['a', 'ä'] } } });
    expect([cut, end]).toMatchObject([
      {
        reason: new InvalidInputError(
          'Serving "texts" was given a string with NUL (U+0000) in "x", where onnxruntime-node would ' +
            'cut it; give strings without it',
        ),
      },
      { reason: { code: 'SERVING_INVALID_INPUT' } },
    ]);
  });
});
