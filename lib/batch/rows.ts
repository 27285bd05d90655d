import type { Container } from './container.js';

/** The rows of a batch, in their order: plain values, or tensors. Nothing is copied before they are consumed. */
export interface Rows {
  readonly size: number;
  /** Equal for rows that can share a batch, and readable. */
  readonly signature: string;
  /** False when memory that the rows lie in has been taken away since. */
  readonly isIntact: boolean;
  /** The bytes of the tensors; plain values are not counted. */
  readonly bytes: number;
  /** The rows from `start` up to and without `end`. */
  slice(start: number, end: number): Rows;
  /** These rows followed by those of the others, which have the same signature. */
  concat(others: readonly Rows[]): Rows;
  /** All rows and `padding` zero rows, in storage of their own. */
  consume(padding: number): Container | unknown[];
  /** The same rows; those that are tensors in storage of their own. */
  copy(): Rows;
  /** All rows, handed over without a copy where they are the whole of one source. */
  release(): Container | unknown[];
  /** All rows to be read at once, by whom copies them elsewhere: views of their source where they lie together in one. */
  lend(): Container | unknown[];
}
