/** How the next token is chosen. */
export interface Sampling {
  readonly temperature: number;
  readonly topK: number;
  readonly topP: number;
  readonly repetitionPenalty: number;
  readonly seed: number;
}

/**
 * Chooses the tokens of one text. It has its own random numbers, so the others of a batch don't
 * change what it chooses.
 */
export class Sampler {
  private readonly random: () => number;
  private readonly seen: Set<number>;

  constructor(
    private readonly sampling: Sampling,
    /** The prompt, whose tokens count as repeated. */
    prompt: readonly number[],
  ) {
    this.random = seeded(sampling.seed);
    this.seen = new Set(sampling.repetitionPenalty === 1 ? [] : prompt);
  }

  /** May change the logits. */
  next(logits: Float32Array): number {
    const { temperature, repetitionPenalty } = this.sampling;
    if (repetitionPenalty !== 1) {
      this.penalise(logits, repetitionPenalty);
    }
    const token = temperature === 0 ? likeliest(logits) : this.draw(logits);
    if (repetitionPenalty !== 1) {
      this.seen.add(token);
    }
    return token;
  }

  /** After Keskar et al., "CTRL" (2019), as transformers does it. */
  private penalise(logits: Float32Array, penalty: number): void {
    for (const token of this.seen) {
      const logit = logits[token]!;
      logits[token] = logit < 0 ? logit * penalty : logit / penalty;
    }
  }

  /** Among the `topK` likeliest, and of these among the fewest whose probabilities reach `topP`. */
  private draw(logits: Float32Array): number {
    const { temperature, topK, topP } = this.sampling;
    const isWhole = topK >= logits.length && topP === 1;
    const tokens = isWhole ? undefined : topOf(logits, Math.min(topK, logits.length));
    const candidates = tokens ? Float32Array.from(tokens, (token) => logits[token]!) : logits;
    const highest = candidates[likeliest(candidates)]!;
    // Less the highest, so that no power overflows.
    const weights = Float64Array.from(candidates, (logit) =>
      Math.exp((logit - highest) / temperature),
    );
    const sum = sumOf(weights);
    const kept = topP === 1 ? weights : weights.subarray(0, placeOf(weights, topP * sum) + 1);
    const place = placeOf(kept, this.random() * (topP === 1 ? sum : sumOf(kept)));
    return tokens ? tokens[place]! : place;
  }
}

function sumOf(weights: Float64Array): number {
  return weights.reduce((sum, weight) => sum + weight, 0);
}

/** Where the point lies if the weights are laid side by side. */
function placeOf(weights: Float64Array, point: number): number {
  let end = 0;
  const place = weights.findIndex((weight) => (end += weight) > point);
  // Rounding may leave a trace after the last one.
  return place === -1 ? weights.length - 1 : place;
}

export function likeliest(logits: Float32Array): number {
  let best = 0;
  for (let token = 1; token < logits.length; token++) {
    if (logits[token]! > logits[best]!) {
      best = token;
    }
  }
  return best;
}

/** The likeliest tokens, the best first; of equals the first. */
function topOf(logits: Float32Array, count: number): number[] {
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

/** The natural logarithm of the token's probability. */
export function logProbabilityOf(logits: Float32Array, token: number): number {
  const { length } = logits;
  const highest = logits[likeliest(logits)]!;
  let sum = 0;
  // With an iterator, this took twice as long.
  for (let at = 0; at < length; at++) {
    sum += Math.exp(logits[at]! - highest);
  }
  return logits[token]! - highest - Math.log(sum);
}

/** Numbers from 0 up to 1, the same for the same seed: Tommy Ettinger's mulberry32. */
function seeded(seed: number): () => number {
  let state = seed | 0;
  return () => {
    state = (state + 0x6d2b79f5) | 0;
    let mixed = Math.imul(state ^ (state >>> 15), state | 1);
    mixed ^= mixed + Math.imul(mixed ^ (mixed >>> 7), mixed | 61);
    return ((mixed ^ (mixed >>> 14)) >>> 0) / 2 ** 32;
  };
}
