import type { LocalServing } from 'nestjs-serving';
import type { Fault } from './rows.js';

/** A serving under the soak, and what is known of it. */
export interface Subject {
  readonly name: string;
  readonly serving: LocalServing;
  readonly keys: readonly string[];
  /** The share of the calls that it gets, against those of others. */
  readonly share: number;
  /** What can go wrong with its rows. */
  readonly faults: readonly Fault[];
  /**
   * A batch that throws runs again until only the calls fail that are at fault, of which there must
   * be one at a time.
   */
  readonly isolates: boolean;
  /** Its batch function tells the ledger which rows it gets. */
  readonly tellsRuns: boolean;
  input(rows: readonly number[], key: string): unknown;
  /** The rows among these whose answer in the output is not their own. */
  wrong(output: unknown, rows: readonly number[], key: string): number;
}
