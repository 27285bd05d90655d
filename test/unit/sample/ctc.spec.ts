import { describe, expect, it } from '@jest/globals';
import { Tensor } from 'nestjs-serving';
import { readRows } from '../../../sample/05-ocr/src/ctc.js';

const sure = (steps: readonly number[]) => steps.map((best): [number, number] => [best, 1]);

describe('readRows', () => {
  const characters = ['', 'a', 'b', ' '];

  /** Rows of steps, each with its likeliest character and the probability of it. */
  function probabilities(
    rows: readonly (readonly [best: number, probability: number][])[],
  ): Tensor {
    const steps = rows[0]!.length;
    const values = new Float32Array(rows.length * steps * characters.length);
    rows
      .flat()
      .forEach(
        ([best, probability], step) => (values[step * characters.length + best] = probability),
      );
    return new Tensor('float32', values, [rows.length, steps, characters.length]);
  }
  const textOf = (...steps: number[]) =>
    readRows(probabilities([sure(steps)]), characters)[0]!.text;

  it('A repeated character counts once, and twice when a blank stands between', () => {
    expect(textOf(0, 1, 1, 2, 2, 2, 0)).toBe('ab');
    expect(textOf(1, 0, 1, 1, 0, 2)).toBe('aab');
  });

  it('Spaces are dropped at both ends only', () => {
    expect(textOf(3, 1, 3, 2, 3)).toBe('a b');
  });

  it('Every row is read by itself', () => {
    const rows = readRows(probabilities([sure([1, 1]), sure([1, 2]), sure([0, 2])]), characters);

    expect(rows.map(({ text }) => text)).toEqual(['a', 'ab', 'b']);
  });

  it('The confidence is the mean of the characters that count', () => {
    const steps: [number, number][] = [
      [1, 0.75],
      [1, 0.2],
      [0, 0.1],
      [2, 0.25],
    ];

    expect(readRows(probabilities([steps]), characters)).toEqual([{ text: 'ab', confidence: 0.5 }]);
  });

  it('An empty line reads as empty text without confidence', () => {
    expect(readRows(probabilities([sure([0, 0])]), characters)).toEqual([
      { text: '', confidence: 0 },
    ]);
  });
});
