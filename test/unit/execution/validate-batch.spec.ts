import { describe, expect, it } from '@jest/globals';
import {
  Batch,
  InvalidBatchError,
  InvalidInputError,
  Tensor,
  UnknownKeyError,
} from 'nestjs-serving';
import { failureOf } from '../../fixtures/async/failure-of.js';
import { externalModel, type Opened } from '../../fixtures/serving/external-model.js';
import { useServings } from '../../fixtures/serving/use-servings.js';
import { floats } from '../../fixtures/values/tensors.js';

type Signature = NonNullable<Opened['signature']>;
type Port = Signature['inputs'][number];

const port = (
  name: string,
  type: Tensor.Type,
  shape: Port['shape'],
  batchAxis: number | null = 0,
): Port => ({ name, type, shape, batchAxis });
const signatureOf = (...inputs: Port[]): Signature => ({
  inputs,
  outputs: [],
  fetches: [],
  states: [],
  dynamicallyQuantised: false,
});

const image = signatureOf(port('image', 'float32', ['batch', 2]));
const tokens = signatureOf(
  port('ids', 'int64', ['batch', 'length']),
  port('mask', 'int64', ['batch', 'length']),
);
const recurrent = signatureOf(
  port('x', 'float32', ['', 1]),
  port('state', 'float32', [2, '', 1], 1),
  port('rate', 'int64', [], null),
);

const ids = (rows: number, length: number): Tensor =>
  new Tensor('int64', new BigInt64Array(rows * length), [rows, length]);
const x = floats([1, 1], [1]);
const state = floats([2, 1, 1], [1, 2]);
const rate = new Tensor('int64', [16n], []);
const recurrentAxes = { state: 1, rate: null };

describe('The rows of a call', () => {
  const start = useServings();

  /** A serving whose model takes these inputs, and answers how many rows a batch has. */
  const serve = (signature: Signature, batchKeys?: readonly string[]) => {
    const partition = {
      prefetch: 0,
      run: async (_: unknown, { size }: { readonly size: number }) => ({
        output: Array.from({ length: size }, () => size),
      }),
      close: async () => {},
    };
    const model = externalModel(async () => ({ partitions: [partition], signature }));
    return start({ name: 'model', model, ...(batchKeys && { batchKeys }) });
  };

  it.each([
    ['a bare tensor for the one input', floats([3, 2], [1, 2, 3, 4, 5, 6]), {}, image],
    ['a tensor by the name of the input', { image: floats([1, 2], [1, 2]) }, {}, image],
    ['dynamic axes of one name and equal length', { ids: ids(2, 7), mask: ids(2, 7) }, {}, tokens],
    ['rows on the axes of the model', { x, state, rate }, recurrentAxes, recurrent],
  ])('[4.9] Rows that fit the model pass: %s', async (_, rows, axes, signature) => {
    const batch = Batch.concatenate([rows], axes);
    const serving = await serve(signature);

    expect(await serving.batchedRun(batch)).toEqual(
      Array.from({ length: batch.size }, () => batch.size),
    );
  });

  it.each([
    [
      'plain values',
      Batch.stack(['a']),
      image,
      'these are no tensors; give some, or make them in preprocess',
    ],
    ['a missing input', Batch.concatenate([{ ids: ids(1, 2) }]), tokens, '"mask" is missing'],
    [
      'a bare tensor for one of several',
      Batch.concatenate([ids(1, 2)]),
      tokens,
      '"ids" is missing',
    ],
    [
      'an input too many',
      Batch.concatenate([{ image: floats([1, 2], [1, 2]), size: x }]),
      image,
      'the model has no input "size"',
    ],
    [
      'an input too many beside one without a name',
      Batch.concatenate([{ '': floats([1, 2], [1, 2]), image: floats([1, 3], [1, 2, 3]) }]),
      image,
      'axis 1 of "image" is 3 and must be 2',
    ],
    [
      'two inputs of one path',
      Batch.concatenate([
        { ids: ids(1, 2), mask: ids(1, 2), 'a.b': ids(1, 2), a: { b: ids(1, 2) } },
      ]),
      signatureOf(
        port('ids', 'int64', ['', 2]),
        port('mask', 'int64', ['', 2]),
        port('a.b', 'int64', ['', 2]),
      ),
      'the model has no input',
    ],
    [
      'an element type',
      Batch.concatenate([new Tensor('int32', [1, 2], [1, 2])]),
      image,
      '"image" is int32 and must be float32',
    ],
    [
      'a rank',
      Batch.concatenate([floats([1, 1, 2], [1, 2])]),
      image,
      '"image" has 3 axes and must have 2',
    ],
    [
      '[N4] no batch axis',
      Batch.concatenate([floats([2], [1, 2])]),
      image,
      '"image" has 1 axes and must have 2; one row has the shape [1, 2]',
    ],
    [
      'a fixed axis',
      Batch.concatenate([floats([1, 3], [1, 2, 3])]),
      image,
      'axis 1 of "image" is 3 and must be 2',
    ],
    [
      'two axes of one name',
      Batch.concatenate([{ ids: ids(1, 2), mask: ids(1, 3) }]),
      tokens,
      'axis 1 of "mask" is 3 and must be 2',
    ],
    [
      'a batch axis',
      Batch.concatenate([{ x, state: floats([1, 2, 1], [1, 2]), rate }], { rate: null }),
      recurrent,
      'the rows of "state" lie on axis 0 and must lie on axis 1',
    ],
    [
      'a shared input with rows',
      Batch.concatenate([{ x, state, rate: ids(1, 1) }], { state: 1 }),
      recurrent,
      '"rate" is given with rows on axis 0 and has no batch axis; give the tensor itself',
    ],
  ])('[4.9] Rows that do not fit the model are refused: %s', async (_, batch, signature, fault) => {
    const serving = await serve(signature);
    const error = await failureOf(serving.batchedRun(batch));

    expect(error).toBeInstanceOf(InvalidInputError);
    expect(String(error)).toContain(`and was given [${batch.signature}]: ${fault}`);
  });

  it('[4.9] The refusal shows what the model accepts', async () => {
    const serving = await serve(recurrent);

    await expect(serving.batchedRun(Batch.stack(['a']))).rejects.toThrow(
      'Serving "model" takes [x: float32[?, 1], state: float32[2, ?, 1], rate: int64[]] and was given [plain values]: ',
    );
  });

  it('[4.7] An unknown key is refused with the sorted list of known keys', async () => {
    const keys = ['en', 'de'];
    const serving = await serve(image, keys);
    const rows = Batch.concatenate([floats([1, 2], [1, 2])]);

    expect(await serving.batchedRun(rows.withKey('en'))).toEqual([1]);
    await expect(serving.batchedRun(rows.withKey('fr'))).rejects.toThrow(
      new UnknownKeyError('Serving "model" has no key "fr"; its keys are de, en'),
    );
    await expect(serving.batchedRun(rows)).rejects.toThrow(
      new UnknownKeyError(
        'Serving "model" has no key "default"; its keys are de, en; name one: batch.withKey(key)',
      ),
    );
    expect(keys).toEqual(['en', 'de']);
  });

  it.each([
    ['at all', Batch.empty()],
    ['in its tensors', Batch.concatenate([floats([0, 2], [])])],
  ])('[2.3] A batch without rows %s is refused', async (_, batch) => {
    const serving = await serve(image);

    await expect(serving.batchedRun(batch)).rejects.toThrow(
      new InvalidBatchError('Serving "model" was given a batch without rows'),
    );
  });
});
