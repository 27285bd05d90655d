import { describe, expect, it } from '@jest/globals';
import { type Container, Tensor } from 'nestjs-serving';
import { flatten } from '../../../lib/core/batch/container.js';
import { type BatchAxes, templateOf } from '../../../lib/core/batch/template.js';
import { floats } from '../../fixtures/values/tensors.js';

const templateFor = (container: Container, axes?: BatchAxes) =>
  templateOf(flatten(container)!, axes);

describe('templateOf', () => {
  it('[2.3] The signature describes the inputs that all rows have in common', () => {
    const container = {
      x: floats([2, 3], [1, 2, 3, 4, 5, 6]),
      state: new Tensor('int64', [1, 2], [1, 2, 1]),
      rate: floats([], [16]),
      tags: new Tensor('string', ['a b', 'c'], [2]),
    };

    const { template, rows } = templateFor(container, { state: 1, rate: null, tags: null });

    expect(rows).toBe(2);
    expect(template.axes).toEqual([null, 1, null, 0]);
    expect(template.signature).toBe(
      'rate: float32[] = ["16"], state: int64[1, rows, 1], tags: string[2] = ["a b","c"], x: float32[rows, 3]',
    );
  });

  it('[2.2] The signature does not depend on the number of rows, the order of names or the values', () => {
    const one = templateFor({ a: floats([1, 2], [1, 2]), b: floats([1], [3]) });
    const two = templateFor({ b: floats([2], [4, 5]), a: floats([2, 2], [6, 7, 8, 9]) });

    expect(one.template.signature).toBe(two.template.signature);
  });

  it('[1.8] A leaf named like a member of every object has no declared axis', () => {
    expect(templateFor({ constructor: floats([2], [1, 2]) }).template.axes).toEqual([0]);
  });
});
