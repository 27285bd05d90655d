import { isServingError } from '../errors.js';
import type { AbortSignalLike } from '../context/call-options.js';

/** The totals of a serving since the application started. */
export interface ServingCounters {
  /** Answered calls. A stream that its consumer left counts as answered. */
  readonly answered: number;
  /**
   * Calls that were refused or failed, by the code of their error, such as `SERVING_OVERLOADED`;
   * `SERVING_CANCELLED` for calls that their signal ended, `OTHER` for errors of other packages.
   */
  readonly failed: Readonly<Record<string, number>>;
  /** Batches that have run, including the pieces of `run`. */
  readonly batches: number;
  /** Batches that failed. */
  readonly failedBatches: number;
  /** Rows in the batches that have run. Rows that ran again count again. */
  readonly rows: number;
  /** Padding rows in the batches. */
  readonly padding: number;
}

/** Counts the calls and batches of a serving. */
export class Counters {
  answered = 0;
  private batches = 0;
  private failedBatches = 0;
  private rows = 0;
  private padding = 0;
  private readonly failures = new Map<string, number>();

  /** Counts a call that has ended: failed, or else answered. `signal` is that of the call. */
  ended(
    failure: { readonly error: unknown } | undefined,
    signal: AbortSignalLike | undefined,
  ): void {
    if (failure) {
      this.failed(failure.error, signal);
    } else {
      this.answered++;
    }
  }

  /** Counts a batch that has run. */
  ran(rows: number, padding: number, hasFailed: boolean): void {
    this.batches++;
    this.rows += rows;
    this.padding += padding;
    this.failedBatches += hasFailed ? 1 : 0;
  }

  /** The current totals. */
  get now(): ServingCounters {
    const { answered, batches, failedBatches, rows, padding, failures } = this;
    return {
      answered,
      failed: Object.fromEntries(failures),
      batches,
      failedBatches,
      rows,
      padding,
    };
  }

  private failed(error: unknown, signal: AbortSignalLike | undefined): void {
    const code = codeOf(error, signal);
    this.failures.set(code, (this.failures.get(code) ?? 0) + 1);
  }
}

function codeOf(error: unknown, signal: AbortSignalLike | undefined): string {
  if (signal?.aborted && signal.reason === error) {
    return 'SERVING_CANCELLED';
  }
  return isServingError(error) ? error.code : 'OTHER';
}
