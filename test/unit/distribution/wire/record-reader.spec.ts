import { describe, expect, it } from '@jest/globals';
import { FrameError } from '../../../../lib/extensions/distribution/wire/prelude.js';
import {
  flagIn,
  listIn,
  numberIn,
  oneOfIn,
  optionalStringIn,
  optionalStringsIn,
  recordOf,
  stringIn,
  wholeIn,
} from '../../../../lib/extensions/distribution/wire/header.js';

const record = { whole: 7, half: 0.5, text: 'a', texts: ['a', 'b'], flag: false, list: [1, 2] };

describe('The record reader', () => {
  it('returns fields that are well-formed, and undefined for optional fields that are missing', () => {
    expect(recordOf(record, 'A record')).toBe(record);
    expect(wholeIn(record, 'whole', 7)).toBe(7);
    expect(numberIn(record, 'half', 0.5)).toBe(0.5);
    expect(flagIn(record, 'flag')).toBe(false);
    expect(stringIn(record, 'text', /^a$/)).toBe('a');
    expect(optionalStringIn(record, 'text')).toBe('a');
    expect(optionalStringIn(record, 'none')).toBeUndefined();
    expect(optionalStringsIn(record, 'texts')).toEqual(['a', 'b']);
    expect(optionalStringsIn(record, 'none')).toBeUndefined();
    expect(oneOfIn(record, 'text', ['b', 'a'])).toBe('a');
    expect(listIn(record, 'list', 2)).toEqual([1, 2]);
  });

  it.each<[string, () => unknown]>([
    ['a list in place of a record', () => recordOf([], 'A record')],
    ['null in place of a record', () => recordOf(null, 'A record')],
    ['a fraction in place of a whole number', () => wholeIn(record, 'half')],
    ['a whole number above its limit', () => wholeIn(record, 'whole', 6)],
    ['a negative number', () => numberIn({ x: -1 }, 'x')],
    ['a number in a string', () => numberIn({ x: '1' }, 'x')],
    ['NaN', () => numberIn({ x: NaN }, 'x')],
    ['an infinite number', () => numberIn({ x: Infinity }, 'x')],
    ['a number in place of a flag', () => flagIn(record, 'whole')],
    ['a missing flag', () => flagIn(record, 'none')],
    ['a string that does not match', () => stringIn(record, 'text', /^b$/)],
    ['a number in place of an optional string', () => optionalStringIn(record, 'whole')],
    ['a list with a number in place of strings', () => optionalStringsIn(record, 'list')],
    ['a string that is not allowed', () => oneOfIn(record, 'text', ['b'])],
    ['a list above its limit', () => listIn(record, 'list', 1)],
  ])('refuses %s with a FrameError', (_, read) => {
    expect(read).toThrow(FrameError);
  });

  it('names the field, its value and what is allowed in the error', () => {
    expect(() => wholeIn(record, 'half')).toThrow(
      'Field "half" is 0.5; allowed is a whole number of 0 or more',
    );
  });
});
