import { expect, it } from '@jest/globals';
import { isProof, proofOf } from '../../../../lib/distribution/transports/handshake.js';

it('[11] a proof holds for its secret and its words', () => {
  const proof = proofOf('secret', 'who', 'a', 'b');

  expect(isProof(proof, 'secret', 'who', 'a', 'b')).toBe(true);
  expect(isProof(proof, 'another', 'who', 'a', 'b')).toBe(false);
  expect(isProof(proof, 'secret', 'link', 'a', 'b')).toBe(false);
  // Words do not run into each other.
  expect(isProof(proof, 'secret', 'who', 'ab', '')).toBe(false);
});

it.each([undefined, null, 7, '', 'x', {}])('[11] with a secret, %j is no proof', (proof) => {
  expect(isProof(proof, 'secret', 'who')).toBe(false);
});

it('[H11] a text of the length of a proof that is not ASCII is no proof', () => {
  const proof = proofOf('secret', 'who')!;

  expect(isProof('é'.repeat(proof.length), 'secret', 'who')).toBe(false);
  expect(isProof(`${'a'.repeat(proof.length - 2)}é`, 'secret', 'who')).toBe(false);
  expect(isProof(proof, 'secret', 'who')).toBe(true);
});

it('[11] without a secret there is nothing to prove, and nothing that can be proved', () => {
  expect(proofOf(undefined, 'who')).toBeUndefined();
  expect(isProof(undefined, undefined, 'who')).toBe(true);
  expect(isProof(proofOf('secret', 'who'), undefined, 'who')).toBe(false);
});
