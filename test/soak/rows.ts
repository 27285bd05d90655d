/** What goes wrong with a row. */
export type Fault = 'none' | 'throws' | 'error';

const faults: readonly Fault[] = ['none', 'throws', 'error'];

/**
 * A row is a number that tells which it is, of all that the soak ever sends, and what goes wrong
 * with it.
 */
export function rowOf(id: number, fault: Fault = 'none'): number {
  return id * 4 + faults.indexOf(fault);
}

export function idOf(row: number): number {
  return Math.floor(row / 4);
}

export function faultOf(row: number): Fault {
  return faults[row % 4]!;
}

/** The answer to a row: no other row, and no other key, has the same. */
export function answerTo(row: number, key: string): number {
  return row * 3 + Number(key);
}

/** Keys that servings of the soak have: what is wrong by a key is wrong by a number. */
export const KEYS = ['0', '1', '2'] as const;

/** What a batch function gives in place of the answer to a row of the fault `error`. */
export class RowError extends Error {
  constructor(readonly row: number) {
    super(`row ${idOf(row)} is an error`);
  }
}
