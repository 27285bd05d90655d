import { seeded } from './random.js';

/** How the next token is chosen. */
export interface Sampling {
  /** 0 always takes the likeliest token; 1 draws with the probabilities of the model. */
  readonly temperature: number;
  /** Draws among so many of the likeliest tokens. */
  readonly topK: number;
  /** The same seed draws the same tokens. */
  readonly seed: number;
}

/**
 * Chooses tokens for one prompt; it keeps its own random numbers, so that others in the batch do
 * not change them. The tokens that were drawn before, for an answer that goes on, count.
 */
export function createSampler(
  { temperature, topK, seed }: Sampling,
  drawn = 0,
): (logits: Float32Array) => number {
  const random = seeded(seed);
  Array.from({ length: drawn }, random);
  return temperature === 0 ? likeliest : (logits) => draw(logits, temperature, topK, random());
}

export function likeliest(logits: Float32Array): number {
  return topOf(logits, 1)[0]!;
}

/** The likeliest tokens, best first; of equals the first. */
export function topOf(logits: Float32Array, count: number): number[] {
  const top: number[] = [];
  let lowest = -Infinity;
  for (let token = 0; token < logits.length; token++) {
    const logit = logits[token]!;
    if (top.length === count && logit <= lowest) {
      continue;
    }
    const place = top.findLastIndex((other) => logits[other]! >= logit) + 1;
    top.splice(place, 0, token);
    top.length = Math.min(top.length, count);
    lowest = logits[top.at(-1)!]!;
  }
  return top;
}

/**
 * The token in which `at` lies, a number from 0 up to 1, when the probabilities of the top k are
 * laid side by side.
 */
function draw(logits: Float32Array, temperature: number, topK: number, at: number): number {
  const top = topOf(logits, topK);
  const highest = logits[top[0]!]!;
  // The highest is subtracted so that the exponential cannot overflow.
  const weights = top.map((token) => Math.exp((logits[token]! - highest) / temperature));
  let rest = at * weights.reduce((sum, weight) => sum + weight, 0);
  // Rounding may leave a trace of the rest after the last token.
  return top[weights.findIndex((weight) => (rest -= weight) < 0)] ?? top[0]!;
}
