import { expect, it } from '@jest/globals';
import {
  isValidHmac,
  hmacOf,
} from '../../../../lib/extensions/distribution/transports/handshake.js';

it('[11] A proof is valid for its secret and its fields', () => {
  const proof = hmacOf('secret', 'who', 'a', 'b');

  expect(isValidHmac(proof, 'secret', 'who', 'a', 'b')).toBe(true);
  expect(isValidHmac(proof, 'another', 'who', 'a', 'b')).toBe(false);
  expect(isValidHmac(proof, 'secret', 'link', 'a', 'b')).toBe(false);
  // Fields are separated, so that their concatenation alone is no proof.
  expect(isValidHmac(proof, 'secret', 'who', 'ab', '')).toBe(false);
});

it.each([undefined, null, 7, '', 'x', {}])('[11] With a secret %j is no valid proof', (proof) => {
  expect(isValidHmac(proof, 'secret', 'who')).toBe(false);
});

it('[H11] A text of the length of a proof that is not ASCII is no valid proof', () => {
  const proof = hmacOf('secret', 'who')!;

  expect(isValidHmac('é'.repeat(proof.length), 'secret', 'who')).toBe(false);
  expect(isValidHmac(`${'a'.repeat(proof.length - 2)}é`, 'secret', 'who')).toBe(false);
  expect(isValidHmac(proof, 'secret', 'who')).toBe(true);
});

it('[11] Without a secret no proof is made, and none is valid', () => {
  expect(hmacOf(undefined, 'who')).toBeUndefined();
  expect(isValidHmac(undefined, undefined, 'who')).toBe(true);
  expect(isValidHmac(hmacOf('secret', 'who'), undefined, 'who')).toBe(false);
});
