import type { Arbitrary } from 'fast-check';

/**
 * What one call came to: a word for the count, such as the code of an error, and, where it must not
 * be, why.
 */
export interface Outcome {
  readonly word: string;
  readonly fault?: string;
}

/** One call, hostile or not. As text it says what it sends. */
export interface Attack {
  send(): Promise<Outcome>;
  toString(): string;
}

/** A way into the application, and what is sent through it. */
export interface Entry {
  readonly name: string;
  readonly hostile: Arbitrary<Attack>;
  /** Calls that must be answered, and rightly, whatever is sent beside them. */
  readonly valid: Arbitrary<Attack>;
}
