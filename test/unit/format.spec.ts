import { describe, expect, it } from '@jest/globals';
import { formatValue, propertyOf, truncate } from '../../lib/core/format.js';

const revoked = (): object => {
  const { proxy, revoke } = Proxy.revocable({}, {});
  revoke();
  return proxy;
};
const throws = (): never => {
  throw new TypeError('no');
};

describe('formatValue', () => {
  it.each<[string, unknown, string]>([
    ['a string', 'digits', '"digits"'],
    ['a number', -0, '-0'],
    ['a list', [1, 2], '[ 1, 2 ]'],
    ['an object', { name: 'digits' }, "{ name: 'digits' }"],
    ['a promise', Promise.resolve(1), 'a promise'],
    ['a symbol', Symbol('digits'), 'Symbol(digits)'],
  ])('formatValue prints %s', (_, value, shown) => {
    expect(formatValue(value)).toBe(shown);
  });

  it.each<[string, unknown]>([
    ['a long string', 'x'.repeat(1e6)],
    ['a long list', Array.from({ length: 1e6 }, (_, i) => i)],
    [
      'an object with many names',
      Object.fromEntries(Array.from({ length: 1e5 }, (_, i) => [`name ${i}`, i])),
    ],
    [
      'an object that is deep and wide',
      { a: Object.fromEntries(Array.from({ length: 1e5 }, (_, i) => [`name ${i}`, i])) },
    ],
    ['a long name', { ['x'.repeat(1e6)]: 1 }],
    ['a long map', new Map(Array.from({ length: 1e5 }, (_, i) => [i, 'x'.repeat(100)]))],
    ['an error with a long message', new Error('x'.repeat(1e6))],
  ])('[6.5] formatValue is short for %s', (_, value) => {
    expect(formatValue(value).length).toBeLessThan(300);
  });

  it.each<[string, unknown]>([
    ['a getter that throws', Object.defineProperty({}, 'a', { get: throws, enumerable: true })],
    ['a tag that throws', Object.defineProperty({}, Symbol.toStringTag, { get: throws })],
    [
      'a proxy whose traps throw',
      new Proxy({}, { get: throws, ownKeys: throws, getPrototypeOf: throws }),
    ],
    [
      'a proxy in front of a prototype',
      Object.create(new Proxy({}, { get: throws, getPrototypeOf: throws })),
    ],
    ['a revoked proxy', revoked()],
    [
      'an object with a throwing inspect method',
      { [Symbol.for('nodejs.util.inspect.custom')]: throws },
    ],
    ['an object without a prototype', Object.create(null)],
  ])('[6.5] formatValue also prints %s', (_, value) => {
    expect(typeof formatValue(value)).toBe('string');
  });
});

describe('truncate', () => {
  it('A short text stays as it is, and a long one ends with its number of characters', () => {
    expect(truncate('float32[rows, 2]')).toBe('float32[rows, 2]');
    expect(truncate('x'.repeat(1000), 10)).toBe('xxxxxxxxxx... (1000 characters)');
  });
});

describe('propertyOf', () => {
  it.each([
    ['image', 'image'],
    ['$a_1', '$a_1'],
    ['1a', "'1a'"],
    ['input.1', "'input.1'"],
    ["it's", String.raw`'it\'s'`],
    ['say "a"', `'say "a"'`],
    [String.raw`a\b`, String.raw`'a\\b'`],
    [String.raw`\"`, String.raw`'\\"'`],
    ['a\r\nb', String.raw`'a\r\nb'`],
  ])('[21.4] The name %j is written as TypeScript reads it: %s', (name, written) => {
    expect(propertyOf(name)).toBe(written);
  });
});
