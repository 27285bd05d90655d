/** The numbers that JSON does not know, and the words that stand for them. */
const numbers: ReadonlyMap<unknown, number> = new Map([
  ['NaN', NaN],
  ['Infinity', Infinity],
  ['-Infinity', -Infinity],
  ['-0', -0],
]);

/** The number that the word stands for, if it is one of those. */
export function numberOfWord(word: unknown): number | undefined {
  return numbers.get(word);
}

/** The word for a number that JSON would not keep. */
export function wordOfNumber(value: number): string | undefined {
  if (Number.isFinite(value) && !Object.is(value, -0)) {
    return undefined;
  }
  return Object.is(value, -0) ? '-0' : String(value);
}
