import { describe, expect, it } from '@jest/globals';
import { truncate, formatValue } from '../../lib/format.js';

const revoked = (): object => {
  const { proxy, revoke } = Proxy.revocable({}, {});
  revoke();
  return proxy;
};
const throws = (): never => {
  throw new TypeError('no');
};

describe('show', () => {
  it.each<[string, unknown, string]>([
    ['a string', 'digits', '"digits"'],
    ['a number', -0, '-0'],
    ['a list', [1, 2], '[ 1, 2 ]'],
    ['an object', { name: 'digits' }, "{ name: 'digits' }"],
    ['a promise', Promise.resolve(1), 'a promise'],
    ['a symbol', Symbol('digits'), 'Symbol(digits)'],
  ])('shows %s', (_, value, shown) => {
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
  ])('[6.5] is short for %s', (_, value) => {
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
    ['what would show itself', { [Symbol.for('nodejs.util.inspect.custom')]: throws }],
    ['an object without a prototype', Object.create(null)],
  ])('[6.5] shows %s all the same', (_, value) => {
    expect(typeof formatValue(value)).toBe('string');
  });
});

describe('clip', () => {
  it('leaves a short text as it is, and says how much of a long one is missing', () => {
    expect(truncate('float32[rows, 2]')).toBe('float32[rows, 2]');
    expect(truncate('x'.repeat(1000), 10)).toBe('xxxxxxxxxx... (1000 characters)');
  });
});
