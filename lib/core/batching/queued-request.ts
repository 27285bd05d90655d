/** Rows of one lane may share a batch. Lanes are compared by identity. */
export interface Lane {
  /** The lane of a single request, whose batches no other request shares. */
  readonly isInline?: boolean;
  /** The only partition that runs its rows, since it has their state; in a divided batcher. */
  readonly partition?: number | undefined;
  /**
   * The sizes of its windows; a window keeps the values from when it opened. Lanes whose batches
   * take equally long share one object.
   */
  readonly limits: Limits;
}

export interface Limits {
  /** The largest number of rows of a batch. */
  readonly batchSize: number;
  readonly batchTimeout: number;
  /** The sizes that batches are padded to, in ascending order. */
  readonly allowedSizes?: readonly number[] | undefined;
  /** Milliseconds until calls are to be answered. */
  readonly latencyTarget?: number | undefined;
}

/** One call: rows that wait for a batch, and a caller that waits for their output. */
export interface QueuedRequest {
  /** The lane of its rows. */
  readonly lane: Lane;
  /** The number of its rows. */
  readonly size: number;
  /** Whether all its rows must run in one batch. They are no more than fit into one. */
  readonly whole: boolean;
  /** Ready rows of a higher priority run first, after their age is taken into account. */
  readonly priority: number;
  /** The tenant that the call belongs to. */
  readonly tenant: string;
  /** The time until which the caller waits, in milliseconds of `performance.now()`. */
  readonly deadline: number;
  /** The cost of all its rows, counted against `queue.maxCost`. */
  readonly cost: number;
  /**
   * The cost of each row, counted against what a batch may cost; in servings with `batchSize.cost`.
   */
  readonly rowCosts?: ArrayLike<number> | undefined;
  /** The caller no longer waits: rows that have not run need not run. */
  readonly isOver: boolean;
  /** Its batcher's record of its rows. */
  readonly entry: QueueEntry<this>;
  /** Rejects the call; it is over afterwards. */
  fail(error: unknown): void;
  /** Like `fail`, when its deadline has passed. */
  expire(): void;
}

/** Rows of a request in an open window. */
export interface OpenPart<R extends QueuedRequest> extends Part<R>, Linked<OpenPart<R>> {
  count: number;
}

/** A batcher's record of a request's rows. */
export class QueueEntry<R extends QueuedRequest> {
  /** The batcher that has admitted the request. */
  queue: { leave(request: QueuedRequest): void } | undefined;
  /** The time of admission in milliseconds of `performance.now()`. */
  arrivedAt = 0;
  /** Rows that no partition has taken yet. */
  waiting = 0;
  /** Its rows in an open window. */
  open: OpenPart<R> | undefined;
  /** Its ready rows. Only the row queue reads and writes them. */
  ready: object | undefined;
}

/** Consecutive rows of one request. */
export interface Part<R extends QueuedRequest> {
  readonly request: R;
  /** The index of the first row in the request. */
  readonly offset: number;
  readonly count: number;
}

/** Whether a caller waits for the request, which ends at its deadline. */
export function isWanted(request: QueuedRequest, now: number): boolean {
  if (!request.isOver && request.deadline <= now) {
    request.expire();
  }
  return !request.isOver;
}

/** The rows of a batch of this many, with its padding. */
export function paddedSize({ allowedSizes }: Limits, rows: number): number {
  return allowedSizes?.find((allowed) => allowed >= rows) ?? rows;
}

export function sizeOf<R extends QueuedRequest>(parts: readonly Part<R>[]): number {
  return parts.reduce((rows, { count }) => rows + count, 0);
}

/** An item of a list, which knows its neighbours. */
export interface Linked<T> {
  before: T | undefined;
  after: T | undefined;
}

/**
 * A doubly linked list of items that are in one list at a time. Every operation takes constant
 * time.
 */
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

  /** Removes an item, which must be in the list. */
  remove(item: T): void {
    const { before, after } = item;
    // An item that has aged would else keep all items behind it in memory until a full collection.
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
