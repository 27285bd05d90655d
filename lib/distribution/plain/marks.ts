/**
 * The names that say what a value is for which JSON has no form. Each is the only name of its object:
 *
 * | name | stands for | holds |
 * | --- | --- | --- |
 * | `$tensor` | a tensor; in outputs a typed array, too | `type`, `dims`, `data` |
 * | `$bigint` | a bigint | decimal digits, a minus before them |
 * | `$number` | NaN, Infinity, -Infinity, -0 | the word |
 *
 * A name that looks like one of them, and is called so, gets another `$` in front.
 */
export type Mark = '$tensor' | '$bigint' | '$number';

export function isMark(name: string): name is Mark {
  return name === '$tensor' || name === '$bigint' || name === '$number';
}

/** The name as it crosses. */
export function escapeMark(name: string): string {
  return LIKE_A_MARK.test(name) ? `$${name}` : name;
}

/** The name as it was, of one that is no mark. */
export function unescapeMark(name: string): string {
  return LIKE_A_MARK.test(name) ? name.slice(1) : name;
}

const LIKE_A_MARK = /^\$+(tensor|bigint|number)$/;
