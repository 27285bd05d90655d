import type { Rows } from './rows.js';

/** Rows that are plain values of any kind. */
export class ListRows implements Rows {
  readonly signature = 'plain values';
  readonly isIntact = true;
  readonly bytes = 0;

  constructor(private readonly values: readonly unknown[]) {}

  get size(): number {
    return this.values.length;
  }

  slice(start: number, end: number): ListRows {
    return start === 0 && end >= this.size ? this : new ListRows(this.values.slice(start, end));
  }

  concat(others: readonly ListRows[]): ListRows {
    const values = [...this.values];
    for (const other of others) {
      for (const value of other.values) {
        values.push(value);
      }
    }
    return new ListRows(values);
  }

  consume(): unknown[] {
    return [...this.values];
  }

  copy(): this {
    return this;
  }

  release(): unknown[] {
    return this.values as unknown[];
  }

  lend(): unknown[] {
    return this.release();
  }
}
