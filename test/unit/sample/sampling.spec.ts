import { describe, expect, it } from '@jest/globals';
import * as fc from 'fast-check';
import { createSampler, likeliest, topOf } from '../../../sample/04-token-stream/src/sampling.js';

const logits = Float32Array.of(1, 3, 2, 0, -Infinity);
const draws = 4000;

/** The share of draws of each token. */
function shares(temperature: number, topK: number, seed = 1): number[] {
  const sample = createSampler({ temperature, topK, seed });
  const counts = Array.from(logits, () => 0);
  for (let draw = 0; draw < draws; draw++) {
    counts[sample(logits)]! += 1;
  }
  return counts.map((count) => count / draws);
}

function sequence(seed: number): number[] {
  const sample = createSampler({ temperature: 1, topK: 5, seed });
  return Array.from({ length: 20 }, () => sample(logits));
}

describe('createSampler', () => {
  it('At temperature 0 the likeliest token is taken', () => {
    expect(shares(0, 5)).toEqual([0, 1, 0, 0, 0]);
    expect(likeliest(Float32Array.of(-2, -1, -1))).toBe(1);
  });

  it('At temperature 1 tokens are drawn by the probabilities of the model', () => {
    const sum = Math.exp(1) + Math.exp(3) + Math.exp(2) + Math.exp(0);

    shares(1, 5).forEach((share, token) =>
      expect(share).toBeCloseTo(Math.exp(logits[token]!) / sum, 1),
    );
    expect(shares(1, 5)[4]).toBe(0);
  });

  it('Higher temperatures flatten the probabilities', () => {
    const [, cold] = shares(0.5, 5) as [number, number];
    const [, warm] = shares(1, 5) as [number, number];
    const [, hot] = shares(2, 5) as [number, number];

    expect(cold).toBeGreaterThan(warm);
    expect(warm).toBeGreaterThan(hot);
  });

  it('Only the top k tokens are drawn', () => {
    const [first, second, third, ...others] = shares(2, 2) as [number, number, number, ...number[]];

    expect(second + third).toBeCloseTo(1);
    expect(third).toBeGreaterThan(0.2);
    expect([first, ...others]).toEqual([0, 0, 0]);
  });

  it('A k beyond the vocabulary means the whole vocabulary', () => {
    expect(shares(1, 100)).toEqual(shares(1, 5));
  });

  it('Equal seeds draw equal tokens, and other seeds draw others', () => {
    expect(sequence(7)).toEqual(sequence(7));
    expect(sequence(7)).not.toEqual(sequence(8));
  });

  it('Large logits do not overflow', () => {
    const sample = createSampler({ temperature: 1, topK: 5, seed: 1 });
    const drawn = Array.from({ length: 20 }, () => sample(Float32Array.of(900, 1000, 1000)));

    expect(new Set(drawn)).toEqual(new Set([1, 2]));
  });
});

describe('topOf', () => {
  it('topOf returns the head of all tokens sorted by their logits', () => {
    const anyLogits = fc.float32Array({ minLength: 1, noNaN: true, max: 100, min: -100 });
    fc.assert(
      fc.property(anyLogits, fc.integer({ min: 1, max: 100 }), (some, count) => {
        const sorted = [...some.keys()].toSorted((one, other) => some[other]! - some[one]!);

        expect(topOf(some, count)).toEqual(sorted.slice(0, count));
      }),
    );
  });
});
