import { expect, it } from '@jest/globals';
import { isValidHmac, hmacOf } from '../../../../lib/distribution/transports/handshake.js';

it('[11] a proof holds for its secret and its words', () => {
  const proof = hmacOf('secret', 'who', 'a', 'b');

  expect(isValidHmac(proof, 'secret', 'who', 'a', 'b')).toBe(true);
  expect(isValidHmac(proof, 'another', 'who', 'a', 'b')).toBe(false);
  expect(isValidHmac(proof, 'secret', 'link', 'a', 'b')).toBe(false);
  // Words do not run into each other.
  expect(isValidHmac(proof, 'secret', 'who', 'ab', '')).toBe(false);
});

it.each([undefined, null, 7, '', 'x', {}])('[11] with a secret, %j is no proof', (proof) => {
  expect(isValidHmac(proof, 'secret', 'who')).toBe(false);
});

it('[H11] a text of the length of a proof that is not ASCII is no proof', () => {
  const proof = hmacOf('secret', 'who')!;

  expect(isValidHmac('é'.repeat(proof.length), 'secret', 'who')).toBe(false);
  expect(isValidHmac(`${'a'.repeat(proof.length - 2)}é`, 'secret', 'who')).toBe(false);
  expect(isValidHmac(proof, 'secret', 'who')).toBe(true);
});

it('[11] without a secret there is nothing to prove, and nothing that can be proved', () => {
  expect(hmacOf(undefined, 'who')).toBeUndefined();
  expect(isValidHmac(undefined, undefined, 'who')).toBe(true);
  expect(isValidHmac(hmacOf('secret', 'who'), undefined, 'who')).toBe(false);
});
