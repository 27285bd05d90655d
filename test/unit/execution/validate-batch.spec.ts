import { describe, expect, it } from '@jest/globals';
import {
  Batch,
  InvalidBatchError,
  InvalidInputError,
  Tensor,
  UnknownKeyError,
} from 'nestjs-serving';
import type {
  ModelPort,
  ModelSignature,
} from '../../../lib/core/partitions/onnx/model-signature.js';
import { checkTemplate, validateBatch } from '../../../lib/core/execution/intake.js';
import { floats } from '../../fixtures/values/tensors.js';

const port = (
  name: string,
  type: Tensor.Type,
  shape: ModelPort['shape'],
  batchAxis: number | null = 0,
): ModelPort => ({
  name,
  type,
  shape,
  batchAxis,
});
const signatureOf = (...inputs: ModelPort[]): ModelSignature => ({
  inputs,
  outputs: [],
  fetches: [],
  states: [],
  dynamicallyQuantised: false,
});

const options = { batchSize: 32, batchTimeout: 0, runSize: Infinity };

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

describe('validateBatch', () => {
  it.each([
    ['a bare tensor for the one input', floats([3, 2], [1, 2, 3, 4, 5, 6]), {}, image],
    ['a tensor by the name of the input', { image: floats([1, 2], [1, 2]) }, {}, image],
    ['dynamic axes of one name and equal length', { ids: ids(2, 7), mask: ids(2, 7) }, {}, tokens],
    ['rows on the axes of the model', { x, state, rate }, recurrentAxes, recurrent],
  ])('[4.9] Rows that fit the model pass: %s', (_, rows, axes, signature) => {
    expect(() => checkTemplate('model', Batch.concatenate([rows], axes), signature)).not.toThrow();
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
  ])('[4.9] Rows that do not fit the model are refused: %s', (_, batch, signature, fault) => {
    const check = (): void => checkTemplate('model', batch, signature);

    expect(check).toThrow(InvalidInputError);
    expect(check).toThrow(`and was given [${batch.signature}]: ${fault}`);
  });

  it('[4.9] The refusal shows what the model accepts', () => {
    expect(() => checkTemplate('model', Batch.stack(['a']), recurrent)).toThrow(
      'Serving "model" takes [x: float32[?, 1], state: float32[2, ?, 1], rate: int64[]] and was given [plain values]: ',
    );
  });

  it('[4.7] An unknown key is refused with the sorted list of known keys', () => {
    const keys = ['en', 'de'];

    expect(() =>
      validateBatch('model', Batch.stack(['a']).withKey('en'), options, keys),
    ).not.toThrow();
    expect(() => validateBatch('model', Batch.stack(['a']).withKey('fr'), options, keys)).toThrow(
      new UnknownKeyError('Serving "model" has no key "fr"; its keys are de, en'),
    );
    expect(() => validateBatch('model', Batch.stack(['a']), options, keys)).toThrow(
      new UnknownKeyError(
        'Serving "model" has no key "default"; its keys are de, en; name one: batch.withKey(key)',
      ),
    );
    expect(keys).toEqual(['en', 'de']);
  });

  it.each([
    ['at all', Batch.empty()],
    ['in its tensors', Batch.concatenate([floats([0, 2], [])])],
  ])('[2.3] A batch without rows %s is refused', (_, batch) => {
    expect(() => validateBatch('model', batch, options, ['default'])).toThrow(
      new InvalidBatchError('Serving "model" was given a batch without rows'),
    );
  });
});
