import type { Tensor } from 'nestjs-serving';

/** The text of a line. */
export interface Reading {
  readonly text: string;
  /** Mean probability of its characters, 0 to 1. */
  readonly confidence: number;
}

/**
 * Reads each row of `probabilities`, of shape `[rows, steps, characters]`, by the best path of CTC
 * (Graves et al., 2006): the likeliest character of each step, repetitions counted once, and
 * without character 0, the blank.
 */
export function readRows({ data, dims }: Tensor, characters: readonly string[]): Reading[] {
  const [rows = 0, steps = 0, choices = 0] = dims;
  return Array.from({ length: rows }, (_, row) => {
    const start = row * steps * choices;
    return readRow(
      (data as Float32Array).subarray(start, start + steps * choices),
      choices,
      characters,
    );
  });
}

function readRow(
  probabilities: Float32Array,
  choices: number,
  characters: readonly string[],
): Reading {
  let text = '';
  let count = 0;
  let sum = 0;
  let previous = 0;
  for (let start = 0; start < probabilities.length; start += choices) {
    const best = indexOfLargest(probabilities, start, start + choices) - start;
    if (best !== 0 && best !== previous) {
      text += characters[best] ?? '';
      count += 1;
      sum += probabilities[start + best]!;
    }
    previous = best;
  }
  return { text: text.trim(), confidence: count && sum / count };
}

function indexOfLargest(values: Float32Array, start: number, end: number): number {
  let best = start;
  for (let index = start + 1; index < end; index++) {
    if (values[index]! > values[best]!) {
      best = index;
    }
  }
  return best;
}
