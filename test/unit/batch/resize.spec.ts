import { describe, expect, it } from '@jest/globals';
import { filledTensor, resize } from '../../../lib/core/batch/tensor.js';
import { InvalidBatchError } from 'nestjs-serving';
import { floats } from '../../fixtures/values/tensors.js';

describe('A tensor with another length on an axis', () => {
  const tensor = floats([2, 3], [1, 2, 3, 4, 5, 6]);

  it.each([
    [1, 2, [2, 2], [1, 2, 4, 5]],
    [1, 4, [2, 4], [1, 2, 3, 0, 4, 5, 6, 0]],
    [0, 1, [1, 3], [1, 2, 3]],
    [0, 3, [3, 3], [1, 2, 3, 4, 5, 6, 0, 0, 0]],
  ])('[14.4] On axis %d, cut or filled up to %d', (axis, length, dims, data) => {
    const resized = resize(tensor, axis, length);

    expect(resized.dims).toEqual(dims);
    expect([...(resized.data as Float32Array)]).toEqual(data);
    expect(tensor.dims).toEqual([2, 3]);
  });

  it('[14.4] Is the same tensor with the same length', () => {
    expect(resize(tensor, 1, 3)).toBe(tensor);
  });
});

describe('A filled tensor', () => {
  it.each([
    ['int64', 1.5],
    ['uint64', -1],
    ['float32', 'a'],
    ['float32', 1n],
    ['string', 1],
  ] as const)('[14.4] Of %s refuses the element %p', (type, fill) => {
    const make = () => filledTensor(type, [2], fill, 'x');

    expect(make).toThrow(InvalidBatchError);
    expect(make).toThrow(`"x" cannot be filled with`);
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
    ['string', 'a', 'a'],
  ] as const)('[14.4] Of %s accepts the element %p', (type, fill, expected) => {
    expect(filledTensor(type, [1, 2], fill).data[1]).toEqual(expected);
  });
});
