import { expect, it } from '@jest/globals';
import * as fc from 'fast-check';
import {
  escapeName,
  isAddress,
  servingPattern,
} from '../../../../lib/extensions/distribution/transports/handshake.js';

it.each([
  ['digits', 'digits'],
  ['my-model_2', 'my-model_2'],
  ['a.b', 'a=2Eb'],
  ['*', '=2A'],
  ['>', '=3E'],
  ['a=2Eb', 'a=3D2Eb'],
  ['größe 😀\n', 'gr=C3=B6=C3=9Fe=20=F0=9F=98=80=0A'],
  ['', '='],
])('[11] The name %j is escaped as %j in subjects and patterns', (name, escaped) => {
  expect(escapeName(name)).toBe(escaped);
});

it('[11] Different names are escaped differently, and each as one token', () => {
  const names = fc.string({ unit: 'grapheme', maxLength: 8 });

  fc.assert(
    fc.property(names, names, (a, b) => {
      expect(escapeName(a)).toMatch(/^[\w=-]+$/);
      expect(escapeName(a) === escapeName(b)).toBe(a === b);
    }),
  );
});

it('[11] The pattern of a serving contains its namespace and its name', () => {
  expect(servingPattern('prod.eu', 'a>b')).toBe('sv.prod=2Eeu.s.a=3Eb');
});

it.each(['', 'a.b', 'a b', 'a>', 'ä', 'a\n', 'a'.repeat(129), 7, undefined, null])(
  '[11] %j is no valid address',
  (value) => {
    expect(isAddress(value)).toBe(false);
  },
);

it('[11] An address consists of letters, digits, _ and -', () => {
  expect(isAddress('Host-1_2-0a')).toBe(true);
});
