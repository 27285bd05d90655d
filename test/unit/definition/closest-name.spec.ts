import { expect, it } from '@jest/globals';
import { closestName } from '../../../lib/core/format.js';

it.each([
  ['serving', 'servings'],
  ['bachSize', 'batchSize'],
  ['BatchSize', 'batchSize'],
  ['batchsizes', 'batchSize'],
  ['timeuot', 'timeout'],
  ['maxQueue', undefined],
  ['x', undefined],
  ['', undefined],
])('[1.9] The option that was meant by "%s" is %s', (name, meant) => {
  expect(closestName(name, ['batchSize', 'batchTimeout', 'servings', 'timeout'])).toBe(meant);
});
