/** Numbers that JSON lacks, by their words. */
const numbers: ReadonlyMap<unknown, number> = new Map([
  ['NaN', NaN],
  ['Infinity', Infinity],
  ['-Infinity', -Infinity],
  ['-0', -0],
]);

/** The word's number, if any. */
export function numberOfWord(word: unknown): number | undefined {
  return numbers.get(word);
}

/** The word for a number that JSON would change. */
export function wordOfNumber(value: number): string | undefined {
  if (Number.isFinite(value) && !Object.is(value, -0)) {
    return undefined;
  }
  return Object.is(value, -0) ? '-0' : String(value);
}
