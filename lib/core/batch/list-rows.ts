import type { FlatRows } from './container.js';

/** Rows that are plain values. */
export class ListRows implements Rows {
  readonly signature = 'plain values';
  readonly isIntact = true;
  readonly bytes = 0;

  constructor(readonly values: readonly unknown[]) {}

  get size(): number {
    return this.values.length;
  }

  slice(start: number, end: number): ListRows {
    return start === 0 && end >= this.size ? this : new ListRows(this.values.slice(start, end));
  }

  join(all: readonly ListRows[]): ListRows {
    const values: unknown[] = [];
    for (const rows of all) {
      for (const value of rows.values) {
        values.push(value);
      }
    }
    return new ListRows(values);
  }

  gather(): unknown[] {
    return [...this.values];
  }

  copy(): this {
    return this;
  }

  release(): unknown[] {
    return this.values as unknown[];
  }

  view(): unknown[] {
    return this.release();
  }
}

/**
 * The rows of a batch, in their order: plain values, or tensors. Nothing is copied before they are
 * gathered.
 */
export interface Rows {
  readonly size: number;
  /** Equal for rows that can share a batch; readable. */
  readonly signature: string;
  /** False when a buffer of the rows was transferred or has shrunk since. */
  readonly isIntact: boolean;
  /** The bytes of the tensors; plain values are not counted. */
  readonly bytes: number;
  /** The rows from `start` up to and without `end`. */
  slice(start: number, end: number): Rows;
  /** The rows of all of these, which have the same signature; these rows are the first. */
  join(all: readonly Rows[]): Rows;
  /** All rows and `padding` zero rows, in storage of their own. */
  gather(padding: number): FlatRows;
  /** The same rows; those that are tensors in storage of their own. */
  copy(): Rows;
  /** All rows, without a copy where they are the whole of one item. */
  release(): FlatRows;
  /** Like release, but may return views of shared memory; copy before the next tick. */
  view(): FlatRows;
}
