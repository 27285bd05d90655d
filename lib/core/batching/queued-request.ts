/** Rows of one lane may share a batch. Lanes are compared by identity. */
export interface Lane {
  /** The lane of a single request, which shares no batch. */
  readonly isInline?: boolean;
  /** The only partition that runs its rows, since it has their state; in a divided batcher. */
  readonly partition?: number | undefined;
  /**
   * A window keeps the values from when it opened. Lanes whose batches take equally long share one
   * object.
   */
  readonly limits: Limits;
}

export interface Limits {
  /** Most rows of a batch. */
  readonly batchSize: number;
  readonly batchTimeout: number;
  /** Batches are padded to these sizes, in ascending order. */
  readonly allowedSizes?: readonly number[] | undefined;
  /** Milliseconds until calls are to be answered. */
  readonly latencyTarget?: number | undefined;
}

export interface QueuedRequest {
  readonly lane: Lane;
  /** In rows. */
  readonly size: number;
  /** True if all its rows must run in one batch; they fit into one. */
  readonly whole: boolean;
  /** Higher priorities run first, corrected by age. */
  readonly priority: number;
  readonly tenant: string;
  /** In milliseconds of `performance.now()`. */
  readonly deadline: number;
  /** All its rows' cost, counted against `queue.maxCost`. */
  readonly cost: number;
  /** Each row's cost, counted against a batch's; in servings with `batchSize.cost`. */
  readonly rowCosts?: ArrayLike<number> | undefined;
  /** True if the caller no longer waits, so its rows needn't run. */
  readonly isOver: boolean;
  readonly entry: QueueEntry<this>;
  fail(error: unknown): void;
  /** Like `fail`, when its deadline has passed. */
  expire(): void;
}

export interface OpenPart<R extends QueuedRequest> extends Part<R>, Linked<OpenPart<R>> {
  count: number;
}

/** A batcher's record of a request's rows. */
export class QueueEntry<R extends QueuedRequest> {
  /** The batcher that has admitted the request. */
  queue: { leave(request: QueuedRequest): void } | undefined;
  /** In milliseconds of `performance.now()`. */
  arrivedAt = 0;
  /** Rows that no partition has taken yet. */
  waiting = 0;
  open: OpenPart<R> | undefined;
  /** Its ready rows. Only the row queue reads and writes them. */
  ready: object | undefined;
}

/** Consecutive rows of one request. */
export interface Part<R extends QueuedRequest> {
  readonly request: R;
  readonly offset: number;
  readonly count: number;
}

/** True if a caller waits for the request. Expires it at its deadline. */
export function isWanted(request: QueuedRequest, now: number): boolean {
  if (!request.isOver && request.deadline <= now) {
    request.expire();
  }
  return !request.isOver;
}

export function paddedSize({ allowedSizes }: Limits, rows: number): number {
  return allowedSizes?.find((allowed) => allowed >= rows) ?? rows;
}

export function sizeOf<R extends QueuedRequest>(parts: readonly Part<R>[]): number {
  return parts.reduce((rows, { count }) => rows + count, 0);
}

export interface Linked<T> {
  before: T | undefined;
  after: T | undefined;
}

/** Doubly linked. An item is in one list at a time. */
export class LinkedList<T extends Linked<T>> {
  first: T | undefined;
  last: T | undefined;

  push(item: T): void {
    item.before = this.last;
    item.after = undefined;
    if (this.last) {
      this.last.after = item;
    } else {
      this.first = item;
    }
    this.last = item;
  }

  /** The item must be in the list. */
  remove(item: T): void {
    const { before, after } = item;
    // Otherwise an old item keeps all items behind it in memory until a full collection.
    item.before = undefined;
    item.after = undefined;
    if (before) {
      before.after = after;
    } else {
      this.first = after;
    }
    if (after) {
      after.before = before;
    } else {
      this.last = before;
    }
  }

  *[Symbol.iterator](): Generator<T> {
    for (let item = this.first; item; item = item.after) {
      yield item;
    }
  }
}
