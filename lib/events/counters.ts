import { isServingError } from '../errors.js';
import type { AbortSignalLike } from '../context/call-options.js';

/** What a serving has done since its application started. */
export interface ServingCounters {
  /** Calls that were answered. A stream that its reader left counts as answered. */
  readonly answered: number;
  /**
   * Calls that were refused or failed, by the code of their error, such as `SERVING_OVERLOADED`;
   * `SERVING_CANCELLED` for those that their signal ended, `OTHER` for errors that are not of this
   * package.
   */
  readonly failed: Readonly<Record<string, number>>;
  /** Batches that have run, the pieces of `run` included. */
  readonly batches: number;
  /** Batches of these that failed. */
  readonly failedBatches: number;
  /** Rows in the batches that have run; those that ran again count again. */
  readonly rows: number;
  /** Rows that were added to the batches as padding. */
  readonly padding: number;
}

/** Counts what a serving does. */
export class Counters {
  answered = 0;
  private batches = 0;
  private failedBatches = 0;
  private rows = 0;
  private padding = 0;
  private readonly failures = new Map<string, number>();

  /** A call has failed. The signal is that of the call. */
  failed(error: unknown, signal: AbortSignalLike | undefined): void {
    const code = codeOf(error, signal);
    this.failures.set(code, (this.failures.get(code) ?? 0) + 1);
  }

  /** A call has ended: with the failure, or else with an answer. */
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

  /** A batch has run. */
  ran(rows: number, padding: number, hasFailed: boolean): void {
    this.batches++;
    this.rows += rows;
    this.padding += padding;
    this.failedBatches += hasFailed ? 1 : 0;
  }

  /** The counters as they are now. */
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
}

function codeOf(error: unknown, signal: AbortSignalLike | undefined): string {
  if (signal?.aborted && signal.reason === error) {
    return 'SERVING_CANCELLED';
  }
  return isServingError(error) ? error.code : 'OTHER';
}
