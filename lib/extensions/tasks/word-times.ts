import type { Tensor } from '../../index.js';
import { floatsOf } from './outputs.js';

/** Attention head that follows the audio. */
export type AlignmentHead = readonly [layer: number, head: number];

/**
 * Attention of a window's tokens to its audio. Gives each token a time as
 * `_extract_token_timestamps` of Python's transformers.
 */
export class Attention {
  /** Names of the decoder's outputs. */
  readonly outputs: readonly string[];
  /** Weights by head and token. */
  private readonly weights: readonly Float32Array[][];

  constructor(
    private readonly heads: readonly AlignmentHead[],
    /** Odd number of frames, whose median smooths the weights. */
    private readonly filterWidth: number,
  ) {
    this.outputs = attentionsOf(heads);
    this.weights = heads.map(() => []);
  }

  /** Adds a token that the decoder has read alone. */
  add(results: Readonly<Record<string, unknown>>): void {
    this.heads.forEach(([layer, head], i) => {
      const output = results[attentionOf(layer)] as Tensor;
      const [, heads, , frames] = output.dims as readonly [number, number, number, number];
      if (head >= heads) {
        throw new Error(
          `alignment_heads names head ${head} of layer ${layer}, and it has ${heads}; correct generation_config.json`,
        );
      }
      this.weights[i]!.push(floatsOf(output).slice(head * frames, (head + 1) * frames));
    });
  }

  /**
   * Frame of each token's beginning.
   *
   * @param frames the encoder's frames with audio
   */
  begins(frames: number): readonly number[] {
    const [first = []] = this.weights;
    const sums = first.map((row) => new Float64Array(Math.min(frames, row.length)));
    for (const rows of this.weights) {
      const shown = normalised(rows.map((row) => row.subarray(0, frames)));
      shown.forEach((row, i) =>
        smoothed(row, this.filterWidth).forEach((value, at) => (sums[i]![at]! += value)),
      );
    }
    return aligned(sums.map((row) => row.map((sum) => -sum / this.heads.length)));
  }
}

/** Names of the decoder's outputs with these heads. */
export function attentionsOf(heads: readonly AlignmentHead[]): readonly string[] {
  return [...new Set(heads.map(([layer]) => attentionOf(layer)))];
}

/** Name of the output with a layer's attention to the audio, in exports of optimum. */
function attentionOf(layer: number): string {
  return `cross_attentions.${layer}`;
}

/** Each frame's weights, with the mean 0 and the deviation 1 over the tokens. */
function normalised(rows: readonly Float32Array[]): readonly Float64Array[] {
  const results = rows.map((row) => Float64Array.from(row));
  for (let at = 0; at < (rows[0]?.length ?? 0); at++) {
    const mean = results.reduce((sum, row) => sum + row[at]!, 0) / rows.length;
    const squares = results.reduce((sum, row) => sum + (row[at]! - mean) ** 2, 0);
    // A single token, or equal weights, deviate by nothing.
    const deviation = Math.sqrt(squares / rows.length) || 1;
    results.forEach((row) => (row[at] = (row[at]! - mean) / deviation));
  }
  return results;
}

/** Median of the values around each one; the ends are mirrored. */
function smoothed(row: Float64Array, width: number): Float64Array {
  const half = width >> 1;
  const { length } = row;
  if (length <= half) {
    return row;
  }
  const sorted = new Float64Array(width);
  return row.map((_, center) => {
    for (let i = 0; i < width; i++) {
      const place = Math.abs(center - half + i);
      const value = row[place < length ? place : 2 * (length - 1) - place]!;
      let at = i;
      for (; at > 0 && sorted[at - 1]! > value; at--) {
        sorted[at] = sorted[at - 1]!;
      }
      sorted[at] = value;
    }
    return sorted[half]!;
  });
}

const DIAGONAL = 0;
const UP = 1;
const LEFT = 2;

/**
 * First column of each row on the cheapest way through the costs: dynamic time warping, with the ties
 * of `_dynamic_time_warping` in Python's transformers.
 */
function aligned(costs: readonly Float64Array[]): readonly number[] {
  const width = (costs[0]?.length ?? 0) + 1;
  // Single precision, as in Python.
  const sums = new Float32Array((costs.length + 1) * width).fill(Infinity);
  const steps = new Uint8Array(sums.length).fill(LEFT);
  sums[0] = 0;
  for (let row = 1; row <= costs.length; row++) {
    steps[row * width] = UP;
    for (let column = 1; column < width; column++) {
      const at = row * width + column;
      const [diagonal, up, left] = [sums[at - width - 1]!, sums[at - width]!, sums[at - 1]!];
      const isDiagonal = diagonal < up && diagonal < left;
      const isUp = !isDiagonal && up < diagonal && up < left;
      steps[at] = isDiagonal ? DIAGONAL : isUp ? UP : LEFT;
      sums[at] = costs[row - 1]![column - 1]! + (isDiagonal ? diagonal : isUp ? up : left);
    }
  }
  const entered = costs.map(() => 0);
  let [row, column] = [costs.length, width - 1];
  while (row > 0) {
    entered[row - 1] = Math.max(0, column - 1);
    const step = steps[row * width + column];
    row -= step === LEFT ? 0 : 1;
    column -= step === UP ? 0 : 1;
  }
  return entered;
}

/** Languages without spaces between their words, as in Python's transformers. */
const UNSPACED = new Set(['zh', 'ja', 'th', 'lo', 'my', 'yue']);

const BEFORE_A_WORD = '"\'“¡¿([{-';
const BEHIND_A_WORD = '"\'.。,，!！?？:：”)]}、';
const PUNCTUATION = '!"#$%&\'()*+,-./:;<=>?@[\\]^_`{|}~';

/** Word of a text, and its tokens' places. */
export interface WordTokens {
  /** Text, with spaces around it. */
  readonly text: string;
  readonly from: number;
  /** Place behind its last token. */
  readonly to: number;
}

/**
 * Words of a text, with the punctuation next to them, as `_combine_tokens_into_words` of Python's
 * transformers. Without spaces, every character is a word.
 *
 * @param language the text's code, undefined for English
 */
export function wordsOf(
  tokens: readonly number[],
  decode: (ids: readonly number[]) => string,
  language: string | undefined,
): readonly WordTokens[] {
  const characters = charactersOf(tokens, decode);
  return withPunctuation(UNSPACED.has(language ?? 'en') ? characters : spaced(characters));
}

/** Fewest tokens that decode to whole characters. */
function charactersOf(
  tokens: readonly number[],
  decode: (ids: readonly number[]) => string,
): readonly WordTokens[] {
  const whole = decode(tokens);
  const parts: WordTokens[] = [];
  let [from, offset] = [0, 0];
  for (let to = 1; to <= tokens.length; to++) {
    const text = decode(tokens.slice(from, to));
    const broken = text.indexOf(REPLACEMENT);
    const isWhole = broken < 0 || (whole[offset + broken] ?? REPLACEMENT) === REPLACEMENT;
    if (isWhole) {
      parts.push({ text, from, to });
      offset += text.length;
      from = to;
    }
  }
  return parts;
}

/** Stands for bytes of no character. */
const REPLACEMENT = '\ufffd';

function spaced(parts: readonly WordTokens[]): readonly WordTokens[] {
  const words: WordTokens[] = [];
  for (const part of parts) {
    const last = words.at(-1);
    const begins = part.text.startsWith(' ') || PUNCTUATION.includes(part.text.trim());
    if (last && !begins) {
      words[words.length - 1] = joined(last, part);
    } else {
      words.push(part);
    }
  }
  return words;
}

function withPunctuation(parts: readonly WordTokens[]): readonly WordTokens[] {
  const words: WordTokens[] = [];
  for (const part of parts.toReversed()) {
    const isBefore = part.text.startsWith(' ') && BEFORE_A_WORD.includes(part.text.trim());
    const next = words.at(-1);
    if (isBefore && next) {
      words[words.length - 1] = joined(part, next);
    } else {
      words.push(part);
    }
  }
  const results: WordTokens[] = [];
  for (const word of words.toReversed()) {
    const last = results.at(-1);
    if (last && !last.text.endsWith(' ') && BEHIND_A_WORD.includes(word.text)) {
      results[results.length - 1] = joined(last, word);
    } else {
      results.push(word);
    }
  }
  return results;
}

function joined(one: WordTokens, other: WordTokens): WordTokens {
  return { text: one.text + other.text, from: one.from, to: other.to };
}
