import type { ResolvedServing } from '../definition/resolved-serving.js';

/** The facts of a serving that a protocol states to its clients. */
export interface ServingProfile {
  readonly runner: ResolvedServing['runner'];
  /** The rows of a full batch. */
  readonly batchSize: number;
  /** Milliseconds that a batch waits for more rows. */
  readonly batchTimeout: number;
  /** The largest number of rows of a call. */
  readonly maxRowsPerCall: number;
  /** Milliseconds after which a session ends; undefined without sessions. */
  readonly sessionIdle: number | undefined;
  /** Whether replies are kept for calls with the same input. */
  readonly hasCache: boolean;
  /** Whether its rows run step by step. */
  readonly isSequence: boolean;
  /** Whether `preprocess` makes the rows, so that callers pass something else. */
  readonly shapesInput: boolean;
  /** Whether `postprocess` makes the reply. */
  readonly shapesOutput: boolean;
}
