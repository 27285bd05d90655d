/** Where rows wait for one another; compared by identity. */
export interface Lane {
  /** It is the lane of one request alone, whose batches no other request shares. */
  readonly isInline?: boolean;
  /**
   * What a window has of them when it opens, it keeps. One object for all lanes of which batches
   * take equally long.
   */
  readonly limits: Limits;
}

export interface Limits {
  readonly batchSize: number;
  readonly batchTimeout: number;
}

/** One call: some rows that wait for a batch, and somebody who waits for them. */
export interface QueuedRequest {
  /** Rows batch only with rows of the same lane. */
  readonly lane: Lane;
  /** The number of its rows. */
  readonly size: number;
  /** All rows must run in one batch; there are no more of them than fit into one. */
  readonly whole: boolean;
  /** Of the rows that are ready, those of higher priority run first, but for their age. */
  readonly priority: number;
  /** Whose it is: tenants share what there is. */
  readonly tenant: string;
  /** When its caller waits no more, in milliseconds of `performance.now()`. */
  readonly deadline: number;
  /** What its rows together count against the most that may wait. */
  readonly cost: number;
  /** The batcher that holds its rows; set when they are admitted. */
  queue: RequestQueue | undefined;
  /** Nobody waits for it any more: rows that have not run need not run. */
  readonly isOver: boolean;
  /** When it was admitted, in milliseconds of `performance.now()`; the batcher notes it. */
  arrivedAt: number;
  /**
   * The rows that no partition has got yet; of these, those in an open window, and those that are
   * ready for a partition. The batcher counts them.
   */
  waiting: number;
  open: number;
  ready: number;
  /** Answers it with the error, after which it is over. */
  fail(error: unknown): void;
  /** Its deadline has passed: as `fail`. */
  expire(): void;
}

/** Holds requests until they are over. */
export interface RequestQueue {
  leave(request: QueuedRequest): void;
}

/** Consecutive rows of one request. */
export interface Part<R extends QueuedRequest> {
  readonly request: R;
  /** Where they start in their request. */
  readonly offset: number;
  readonly count: number;
}

/** Whether somebody waits for it; from its deadline on nobody does. */
export function isWanted(request: QueuedRequest, now: number): boolean {
  if (!request.isOver && request.deadline <= now) {
    request.expire();
  }
  return !request.isOver;
}

export function sizeOf<R extends QueuedRequest>(parts: readonly Part<R>[]): number {
  return parts.reduce((rows, { count }) => rows + count, 0);
}
