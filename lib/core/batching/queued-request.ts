/** Rows of one lane may share a batch. Lanes are compared by identity. */
export interface Lane {
  readonly isAlone?: boolean;
  /** Partition that has the rows' state, in a divided batcher. */
  readonly partition?: number | undefined;
  /**
   * A window keeps the values from when it opened. Lanes whose batches take equally long share one
   * object.
   */
  readonly limits: Limits;
  /** Set if replies leave in their calls' order. */
  readonly replies?: object | undefined;
}

export interface Limits {
  readonly batchSize: number;
  readonly batchTimeout: number;
  /** Ascending. */
  readonly allowedSizes?: readonly number[] | undefined;
  /** Milliseconds until calls are to be answered. */
  readonly latencyTarget?: number | undefined;
  /** Limits whose batches take equally long. */
  readonly like?: Limits | undefined;
}

/** Only its batcher writes the fields that aren't abstract. */
export abstract class QueuedRequest {
  abstract readonly lane: Lane;
  abstract readonly size: number;
  /** True if all its rows, which fit into one batch, must share it. */
  abstract readonly whole: boolean;
  /** Corrected by age. */
  abstract readonly priority: number;
  abstract readonly tenant: string;
  /** Milliseconds of `performance.now()`. */
  abstract readonly deadline: number;
  /** All rows' cost, counted against `queue.maxCost`. */
  abstract readonly cost: number;
  /** Each row's cost, counted against a batch's; with `batchSize.cost`. */
  abstract readonly rowCosts?: ArrayLike<number> | undefined;
  /** True if the caller no longer waits. */
  abstract readonly isOver: boolean;
  queue: { leave(request: QueuedRequest): void } | undefined;
  /** Batches that took its rows; only for a call of a batch's function. */
  runs: object[] | undefined;
  /** Milliseconds of `performance.now()`. */
  arrivedAt = 0;
  /** Rows that no partition has taken yet. */
  waiting = 0;
  open: OpenPart<this> | undefined;
  ready: object | undefined;

  abstract fail(error: unknown): void;
  abstract expire(): void;
}

export interface OpenPart<R extends QueuedRequest> extends Part<R>, Linked<OpenPart<R>> {
  count: number;
}

export interface Part<R extends QueuedRequest> {
  readonly request: R;
  readonly offset: number;
  readonly count: number;
}

/** True if a caller waits. Expires the request at its deadline. */
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

/** An item is in one list at a time. */
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

  remove(item: T): void {
    const { before, after } = item;
    // Links of an old item would keep later items in memory until a full collection.
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
