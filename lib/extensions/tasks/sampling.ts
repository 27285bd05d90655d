export interface Sampling {
  readonly temperature: number;
  readonly topK: number;
  readonly topP: number;
  readonly minP: number;
  readonly repetitionPenalty: number;
  readonly presencePenalty: number;
  readonly frequencyPenalty: number;
  readonly seed: number;
}

/**
 * Makes tokens impossible.
 *
 * @param allowed a bit for each token, from the lowest of each number on; tokens behind its end are
 *   not allowed
 */
export function allowOnly(logits: Float32Array, allowed: Int32Array): void {
  for (let from = 0; from < logits.length; from += 32) {
    const bits = allowed[from >> 5] ?? 0;
    const end = Math.min(from + 32, logits.length);
    for (let token = from; token < end; token++) {
      if (((bits >>> (token & 31)) & 1) === 0) {
        logits[token] = -Infinity;
      }
    }
  }
}

/** Chooses one text's tokens with its own random numbers, so that other texts change nothing. */
export class Sampler {
  private readonly random: () => number;
  /** Tokens of the prompt and the answer, if repeated ones are penalised. */
  private readonly seen: Set<number> | undefined;
  /** Counts of the answer's tokens, if a penalty needs them. */
  private readonly written: Map<number, number> | undefined;

  constructor(
    private readonly sampling: Sampling,
    /** Prompt, whose tokens count as repeated. */
    prompt: readonly number[],
  ) {
    const { seed, repetitionPenalty, presencePenalty, frequencyPenalty } = sampling;
    this.random = seeded(seed);
    this.seen = repetitionPenalty === 1 ? undefined : new Set(prompt);
    this.written = presencePenalty === 0 && frequencyPenalty === 0 ? undefined : new Map();
  }

  /** May change the logits. */
  next(logits: Float32Array): number {
    this.penalise(logits);
    const token = this.sampling.temperature === 0 ? likeliest(logits) : this.draw(logits);
    this.seen?.add(token);
    this.written?.set(token, (this.written.get(token) ?? 0) + 1);
    return token;
  }

  /**
   * Repetitions as in Keskar et al., "CTRL" (2019), and transformers; presence and frequency as
   * https://platform.openai.com/docs/api-reference/chat/create says, by the answer's own tokens.
   */
  private penalise(logits: Float32Array): void {
    const { repetitionPenalty, presencePenalty, frequencyPenalty } = this.sampling;
    for (const token of this.seen ?? []) {
      const logit = logits[token]!;
      logits[token] = logit < 0 ? logit * repetitionPenalty : logit / repetitionPenalty;
    }
    for (const [token, count] of this.written ?? []) {
      logits[token]! -= presencePenalty + count * frequencyPenalty;
    }
  }

  /**
   * Draws among the `topK` likeliest, of these among the fewest that reach `topP`, and of these among
   * those with `minP` of the likeliest's probability.
   */
  private draw(logits: Float32Array): number {
    const { temperature, topK, topP, minP } = this.sampling;
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
    if (minP > 0) {
      // The likeliest has the weight 1.
      weights.forEach((weight, at) => (weights[at] = weight < minP ? 0 : weight));
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
