/** Rows of one lane may share a batch. Lanes are compared by identity. */
export interface Lane {
  /** The lane of a single request, which shares no batch. */
  readonly isAlone?: boolean;
  /** The only partition that runs its rows, since it has their state; in a divided batcher. */
  readonly partition?: number | undefined;
  /**
   * A window keeps the values from when it opened. Lanes whose batches take equally long share one
   * object.
   */
  readonly limits: Limits;
  /** With it, replies leave in their calls' order. */
  readonly replies?: object | undefined;
}

export interface Limits {
  /** Most rows of a batch. */
  readonly batchSize: number;
  readonly batchTimeout: number;
  /** Batches are padded to these sizes, in ascending order. */
  readonly allowedSizes?: readonly number[] | undefined;
  /** Milliseconds until calls are to be answered. */
  readonly latencyTarget?: number | undefined;
  /** Batches with these other limits take equally long. */
  readonly like?: Limits | undefined;
}

/** Only its batcher writes the fields that aren't abstract. */
export abstract class QueuedRequest {
  abstract readonly lane: Lane;
  /** Rows. */
  abstract readonly size: number;
  /** True if all its rows must run in one batch; they fit into one. */
  abstract readonly whole: boolean;
  /** Higher priorities run first, corrected by age. */
  abstract readonly priority: number;
  abstract readonly tenant: string;
  /** Milliseconds of `performance.now()`. */
  abstract readonly deadline: number;
  /** All its rows' cost, counted against `queue.maxCost`. */
  abstract readonly cost: number;
  /** Each row's cost, counted against a batch's; in servings with `batchSize.cost`. */
  abstract readonly rowCosts?: ArrayLike<number> | undefined;
  /** True if the caller no longer waits, so its rows needn't run. */
  abstract readonly isOver: boolean;
  /** The batcher that has admitted the request. */
  queue: { leave(request: QueuedRequest): void } | undefined;
  /** Batches that have taken its rows; only for a call of a batch's function. */
  runs: object[] | undefined;
  /** Milliseconds of `performance.now()`. */
  arrivedAt = 0;
  /** Rows that no partition has taken yet. */
  waiting = 0;
  open: OpenPart<this> | undefined;
  /** Its ready rows. Only the row queue reads and writes them. */
  ready: object | undefined;

  abstract fail(error: unknown): void;
  /** Like `fail`, when its deadline has passed. */
  abstract expire(): void;
}

export interface OpenPart<R extends QueuedRequest> extends Part<R>, Linked<OpenPart<R>> {
  count: number;
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
