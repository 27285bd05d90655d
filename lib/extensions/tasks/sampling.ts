export interface Sampling {
  readonly temperature: number;
  readonly topK: number;
  readonly topP: number;
  readonly repetitionPenalty: number;
  readonly seed: number;
}

/** Chooses one text's tokens with its own random numbers, so that other texts change nothing. */
export class Sampler {
  private readonly random: () => number;
  private readonly seen: Set<number>;

  constructor(
    private readonly sampling: Sampling,
    /** Prompt, whose tokens count as repeated. */
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

  /** Follows Keskar et al., "CTRL" (2019), as transformers does. */
  private penalise(logits: Float32Array, penalty: number): void {
    for (const token of this.seen) {
      const logit = logits[token]!;
      logits[token] = logit < 0 ? logit * penalty : logit / penalty;
    }
  }

  /** Draws among the `topK` likeliest, and of these among the fewest that reach `topP`. */
  private draw(logits: Float32Array): number {
    const { temperature, topK, topP } = this.sampling;
    const tokens = topK < logits.length ? topOf(logits, topK) : undefined;
    const candidates = tokens ? Float32Array.from(tokens, (token) => logits[token]!) : logits;
    const highest = candidates[likeliest(candidates)]!;
    // Subtracts the highest, so that no power overflows.
    const weights = Float64Array.from(candidates, (logit) =>
      Math.exp((logit - highest) / temperature),
    );
    if (topP < 1) {
      keepShare(weights, topP);
    }
    const place = placeOf(weights, this.random() * sumOf(weights));
    return tokens ? tokens[place]! : place;
  }
}

function sumOf(weights: Float64Array): number {
  return weights.reduce((sum, weight) => sum + weight, 0);
}

/**
 * Keeps the fewest weights that together exceed this share, of equals the first; others become 0.
 * Sorts only numbers, much faster than tokens.
 */
function keepShare(weights: Float64Array, share: number): void {
  const sorted = weights.toSorted();
  let left = share * sumOf(weights);
  let at = sorted.length;
  do {
    at--;
    left -= sorted[at]!;
  } while (at > 0 && left >= 0);
  const lowest = sorted[at]!;
  let equals = sorted.lastIndexOf(lowest) - at + 1;
  weights.forEach((weight, place) => {
    if (weight < lowest || (weight === lowest && equals-- <= 0)) {
      weights[place] = 0;
    }
  });
}

/** Place of the point if the weights lie side by side. */
function placeOf(weights: Float64Array, point: number): number {
  let end = 0;
  const place = weights.findIndex((weight) => (end += weight) > point);
  // Rounding may leave a trace after the last one.
  return place === -1 ? weights.findLastIndex((weight) => weight !== 0) : place;
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

/**
 * Likeliest tokens, of equals the first, in vocabulary order. The heap's top is the least likely,
 * which a better one replaces.
 */
function topOf(logits: Float32Array, count: number): Int32Array {
  const isWorse = (one: number, other: number): boolean =>
    logits[one]! < logits[other]! || (logits[one] === logits[other] && one > other);
  const heap = Int32Array.from({ length: count }, (_, token) => token);
  const sink = (from: number): void => {
    const token = heap[from]!;
    let place = from;
    for (;;) {
      let child = 2 * place + 1;
      if (child + 1 < count && isWorse(heap[child + 1]!, heap[child]!)) {
        child++;
      }
      if (child >= count || !isWorse(heap[child]!, token)) {
        heap[place] = token;
        return;
      }
      heap[place] = heap[child]!;
      place = child;
    }
  };
  for (let place = (count >> 1) - 1; place >= 0; place--) {
    sink(place);
  }
  let lowest = logits[heap[0]!]!;
  for (let token = count; token < logits.length; token++) {
    // A later token loses against an equal one.
    if (logits[token]! > lowest) {
      heap[0] = token;
      sink(0);
      lowest = logits[heap[0]]!;
    }
  }
  return heap.toSorted();
}

/** Natural logarithm of the token's probability. */
export function logProbabilityOf(logits: Float32Array, token: number): number {
  const { length } = logits;
  const highest = logits[likeliest(logits)]!;
  let sum = 0;
  // An iterator takes twice as long.
  for (let at = 0; at < length; at++) {
    sum += Math.exp(logits[at]! - highest);
  }
  return logits[token]! - highest - Math.log(sum);
}

/** Repeatable numbers from 0 up to 1: Tommy Ettinger's mulberry32. */
function seeded(seed: number): () => number {
  let state = seed | 0;
  return () => {
    state = (state + 0x6d2b79f5) | 0;
    let mixed = Math.imul(state ^ (state >>> 15), state | 1);
    mixed ^= mixed + Math.imul(mixed ^ (mixed >>> 7), mixed | 61);
    return ((mixed ^ (mixed >>> 14)) >>> 0) / 2 ** 32;
  };
}
