import { describe, expect, it } from '@jest/globals';
import { InvalidArgumentError } from 'commander';
import {
  parseDuration,
  parseHeader,
  parseInput,
  parseNumbers,
  parseShape,
  parseWhole,
  parseWholes,
} from '../../../lib/extensions/cli/program.js';
import { sampleRows } from '../../../lib/extensions/cli/load/sample-rows.js';
import { tableOf } from '../../../lib/extensions/cli/output.js';
import { InvalidInputError } from '../../../lib/index.js';

describe('[21.5] Arguments', () => {
  it.each([
    ['50ms', 50],
    ['50', 50],
    ['0.5s', 500],
    ['2m', 120_000],
  ])('the time %s', (text, milliseconds) => {
    expect(parseDuration(text)).toBe(milliseconds);
  });

  it('lists, shapes and headers', () => {
    expect(parseWholes('1,2,4')).toEqual([1, 2, 4]);
    expect(parseNumbers('0.5,100')).toEqual([0.5, 100]);
    expect(parseShape('a=b=1x3', { c: [1] })).toEqual({ c: [1], 'a=b': [1, 3] });
    expect(parseInput('["@"]')).toBe('["@"]');
    expect(parseHeader('x-api-key: a:b', { a: 'b' })).toEqual({ a: 'b', 'x-api-key': 'a:b' });
  });

  it.each<[string, () => unknown]>([
    ['a time', () => parseDuration('soon')],
    ['no time', () => parseDuration('0ms')],
    ['whole numbers', () => parseWholes('1,x')],
    ['one number', () => parseWhole('1,2')],
    ['rates', () => parseNumbers('0')],
    ['a shape', () => parseShape('image')],
    ['sizes', () => parseShape('image=')],
    ['whole sizes', () => parseShape('image=1xx3')],
    ['a header', () => parseHeader('key')],
    ['a file', () => parseInput('@nowhere.json')],
  ])('are refused that are no %s', (_, parse) => {
    expect(parse).toThrow(InvalidArgumentError);
  });
});

describe('[21.6] Made-up rows', () => {
  const inputs = [
    { name: 'image', type: 'float32' as const, shape: ['batch', 2, null], batchAxis: 0 },
    { name: 'words', type: 'string' as const, shape: [2], batchAxis: null },
    { name: 'ids', type: 'int64' as const, shape: ['batch'], batchAxis: 0 },
  ];

  it('have the shape of the model, and given sizes where that is open', () => {
    const { image, words, ids } = sampleRows(inputs, 3, { image: [1, 2, 5] });

    expect(image!.dims).toEqual([3, 2, 5]);
    expect(words!.data).toEqual(['a sample of text', 'a sample of text']);
    expect(ids!.data).toEqual(BigInt64Array.of(0n, 1n, 0n));
  });

  it.each<[string, Record<string, number[]>, string]>([
    ['an open axis', {}, '--shape image=1x2x?'],
    [
      'another number of axes',
      { image: [1, 2] },
      'The shape 1x2 of "image" has 2 axes; the input has 3',
    ],
    [
      'another size of a fixed axis',
      { image: [1, 3, 5] },
      'Axis 1 of the input "image" has the size 2, not 3',
    ],
    [
      'a number of rows',
      { image: [8, 2, 5] },
      'Axis 0 of the input "image" counts rows, not 8; write 1, and --rows 8',
    ],
    [
      'an unknown input',
      { sound: [1] },
      'There is no input "sound"; the inputs are image, words, ids',
    ],
  ])('are refused for %s', (_, shapes, message) => {
    expect(() => sampleRows(inputs, 1, shapes)).toThrow(InvalidInputError);
    expect(() => sampleRows(inputs, 1, shapes)).toThrow(message);
  });
});

it('[21.6] Numbers of a table are right-aligned', () => {
  expect(
    tableOf(
      ['name', 'calls'],
      [
        ['a', '5'],
        ['longer', '12345'],
      ],
    ),
  ).toBe(['name    calls', 'a           5', 'longer  12345'].join('\n'));
});
