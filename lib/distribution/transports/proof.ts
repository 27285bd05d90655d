import { createHmac, timingSafeEqual } from 'node:crypto';

/** Shows who has the secret that this was said by one who knows it; nothing without a secret. */
export function proofOf(secret: string | undefined, ...words: readonly string[]): string | undefined {
  return secret === undefined ? undefined : createHmac('sha256', secret).update(JSON.stringify(words)).digest('base64');
}

/** Whether it is such a proof of these words. */
export function isProof(proof: unknown, secret: string | undefined, ...words: readonly string[]): boolean {
  const expected = proofOf(secret, ...words);
  if (expected === undefined || typeof proof !== 'string') {
    return proof === expected;
  }
  const [given, right] = [Buffer.from(proof), Buffer.from(expected)];
  return given.byteLength === right.byteLength && timingSafeEqual(given, right);
}
