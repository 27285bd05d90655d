import { Heap } from 'heap-js';
import type { Fill, Load } from './budget.js';
import { COST_CLASSES } from './cost-classes.js';
import { Fifo } from './fair-queue.js';
import type { QueuedRequest } from './queued-request.js';

/** A row in a lane with a budget, or all rows of a request that must run whole. */
export interface CostedRow<R extends QueuedRequest> extends Load {
  readonly request: R;
  /** The index of the first row in the request. */
  readonly offset: number;
  /** Grows with each row that arrives in the lane. */
  readonly arrival: number;
  readonly costClass: number;
  /** It was taken, or its caller has left. */
  isGone: boolean;
}

/** Whether a caller waits for the row; removes the row if not. */
export type IsLive<R extends QueuedRequest> = (row: CostedRow<R>) => boolean;

/**
 * One tenant's rows of one priority, in arrival order and by cost class.
 *
 * Rows of similar cost may pass older ones, but at most `overtaking` batches may pass a row. We keep
 * the arrival of each such batch's youngest row: rows older than the `overtaking`-th latest of these
 * go first, in arrival order.
 */
export class TenantRows<R extends QueuedRequest> {
  private readonly rows = new Fifo<CostedRow<R>>();
  private readonly classes: (Fifo<CostedRow<R>> | undefined)[] = [];
  /** The arrivals of the youngest rows of batches that passed rows: the latest of them. */
  private readonly passes = new Heap<number>();
  /** The youngest row in the batch that is being formed. */
  private youngest = -1;
  /** No class above this one has a row for the batch that is being formed. */
  private from = 0;

  constructor(
    readonly tenant: string,
    readonly weight: number,
    /** The cost of the rows it has had, divided by its weight. The lowest is next. */
    public pass: number,
    /** Breaks ties of equal `pass`. */
    public turn: number,
    private readonly overtaking: number,
  ) {}

  add(row: CostedRow<R>): void {
    this.rows.push(row);
    if (this.overtaking > 0) {
      (this.classes[row.costClass] ??= new Fifo()).push(row);
    }
  }

  /** The oldest row. */
  head(isLive: IsLive<R>): CostedRow<R> | undefined {
    return first(this.rows, isLive);
  }

  /**
   * The row for a batch whose rows are of the class `top` or lower: the oldest row if the batch is
   * empty or the row must not be passed, or else one of the highest class that fits.
   */
  pick(fill: Fill, top: number, isLive: IsLive<R>): CostedRow<R> | undefined {
    const head = this.head(isLive);
    if (!head || fill.rows === 0 || this.mustNotPass(head)) {
      return head && fill.fits(head) ? head : undefined;
    }
    for (this.from = Math.max(this.from, top); this.from < COST_CLASSES; this.from++) {
      const rows = this.classes[this.from];
      const row = rows && first(rows, isLive);
      if (row && fill.fits(row)) {
        return row;
      }
    }
    return undefined;
  }

  /** Notes that the row was taken. */
  took(row: CostedRow<R>): void {
    this.youngest = Math.max(this.youngest, row.arrival);
    // Rows that are taken as the oldest would else stay in classes that no batch asks for.
    const rows = this.classes[row.costClass];
    if (rows) {
      first(rows, isPresent);
    }
  }

  /** Notes that the batch is formed: it has passed the older rows that are left. */
  endBatch(): void {
    const oldest = first(this.rows, isPresent);
    if (this.overtaking > 0 && oldest && this.youngest > oldest.arrival) {
      this.passes.push(this.youngest);
      while (this.passes.length > this.overtaking || this.passes.peek()! < oldest.arrival) {
        this.passes.pop();
      }
    }
    this.youngest = -1;
    this.from = 0;
  }

  /** Removes the rows whose callers have left. */
  sweep(): void {
    this.rows.keep(isPresent);
    this.classes.forEach((rows) => rows?.keep(isPresent));
  }

  /** Whether one of its rows is like that. */
  some(isOne: (row: CostedRow<R>) => boolean): boolean {
    return this.rows.some((row) => !row.isGone && isOne(row));
  }

  *[Symbol.iterator](): Generator<CostedRow<R>> {
    for (const row of this.rows) {
      if (!row.isGone) {
        yield row;
      }
    }
  }

  private mustNotPass({ arrival }: CostedRow<R>): boolean {
    const { overtaking, passes } = this;
    return overtaking === 0 || (passes.length === overtaking && arrival < passes.peek()!);
  }
}

function isPresent({ isGone }: { readonly isGone: boolean }): boolean {
  return !isGone;
}

/** The first live row; those before it are removed. */
function first<R extends QueuedRequest>(
  rows: Fifo<CostedRow<R>>,
  isLive: IsLive<R>,
): CostedRow<R> | undefined {
  for (let row = rows.peek(); row; row = rows.peek()) {
    if (isLive(row)) {
      return row;
    }
    rows.shift();
  }
  return undefined;
}
