import type { BatchListener } from '../batch-function.js';
import type { BatchEnd, FeedsRequest, Loaded, RowsRequest } from './worker-protocol.js';

/** The listener of a batch in a worker, whose messages go to the application. */
export type Listen = (hooks: readonly string[], plainRows: boolean) => BatchListener;

/** The model or module file that a worker has loaded. */
export interface WorkerSession {
  readonly loaded: Loaded;
  /** Whether it runs several batches at once, each as soon as it arrives. */
  readonly isConcurrent?: boolean;
  /** Runs one batch, and returns its end with the buffers that move with it. */
  run(batch: RowsRequest | FeedsRequest, listen: Listen): Promise<[BatchEnd, ArrayBuffer[]?]>;
  /** Drops the states of sessions that have ended. */
  endSessions(ids: readonly number[]): void;
}
