import { type Budget, Fill, loadOf } from './budget.js';
import { costClassOf } from './cost-classes.js';
import { CostedLevel } from './costed-level.js';
import type { LaneRows, Part, QueuedRequest } from './queued-request.js';
import type { QueueOrder } from './priority-queue.js';
import type { CostedRow } from './tenant-rows.js';

/** The number of stale requests below which a search is not worth its cost. */
const LEFT_KEPT = 64;

/**
 * A budgeted lane's ready rows, in the order of `PriorityQueue`, as many as a batch may cost. Each
 * batch has the next row of that order; with `overtaking`, its other rows have a similar cost (see
 * `TenantRows`, `CostClasses`). A row that doesn't fit stays in front of its tenant's rows; rows of
 * other tenants and lower priorities may fill the batch.
 */
export class CostedRows<R extends QueuedRequest> implements LaneRows<R> {
  /** Why the last batch took no more rows, if not for lack of places or of rows. */
  closedBy: 'cost' | undefined;
  private readonly levels: CostedLevel<R>[] = [];
  /** The rows of each request that are here. */
  private readonly requests = new Map<R, { readonly rows: CostedRow<R>[]; live: number }>();
  private rows = 0;
  private cost = 0;
  private arrivals = 0;
  /** The number of requests that left since the last search for them. */
  private left = 0;
  /** The time until which rows are late. */
  private limit = 0;

  constructor(
    private readonly order: QueueOrder,
    private readonly budget: Budget,
  ) {}

  /** The rows that a caller waits for. */
  get size(): number {
    return this.rows;
  }

  add({ request, offset, count }: Part<R>): void {
    request.ready += count;
    this.rows += count;
    if (!request.whole) {
      for (let row = offset; row < offset + count; row++) {
        this.addRow(request, row, 1);
      }
    } else if (offset === 0) {
      // Its other rows follow in the same turn of the event loop.
      this.addRow(request, 0, request.size);
    }
  }

  /** Whether there are rows of at least this priority. */
  reaches(priority: number, now: number): boolean {
    this.limit = now;
    return this.levels.some((level) => level.priority >= priority && level.head(this.isLive));
  }

  /** Takes a batch that costs no more than the budget and `most`. See `PriorityQueue.take`. */
  takeWithin(
    most: number,
    room: number,
    now: number,
    endOf: (rows: number, cost: number) => number,
  ): Part<R>[] {
    const rows = this.expected(room);
    const cost = this.rows === 0 ? 0 : (this.cost / this.rows) * rows;
    return this.take(room, now, endOf(rows, Math.min(cost, most)), most);
  }

  /** See `PriorityQueue.take`. */
  take(room: number, now: number, until = now, most = Infinity): Part<R>[] {
    this.limit = now;
    if (this.levels.some((level) => level.some(({ request }) => request.deadline > until))) {
      this.limit = until;
    }
    const { budget } = this;
    const fill = new Fill(most < budget.most ? { ...budget, most } : budget, room);
    const taken: CostedRow<R>[] = [];
    const spent = new Set<CostedLevel<R>>();
    let top = 0;
    for (let level = this.next(spent); level && !fill.isFull; level = this.next(spent)) {
      const row = level.pick(fill, top, this.isLive);
      if (!row) {
        spent.add(level);
        continue;
      }
      top = fill.rows === 0 ? level.topOf(row, room) : top;
      fill.add(row);
      taken.push(row);
      row.request.ready -= row.count;
      this.remove(level, row);
      level.took(row);
    }
    this.levels.forEach((level) => level.endBatch());
    const isCut = fill.isCut || fill.isFull || (this.budget.overtaking > 0 && this.rows > 0);
    this.closedBy = fill.rows < room && isCut ? 'cost' : undefined;
    return partsOf(taken);
  }

  /** Removes the rows of a request that is over, at the latest when they are next. */
  leave(request: R): void {
    if (request.ready === 0) {
      return;
    }
    request.ready = 0;
    const present = this.requests.get(request)?.rows.filter(({ isGone }) => !isGone) ?? [];
    present.forEach((row) => this.remove(this.levelOf(row), row));
    this.left++;
    // Searches when stale requests are the larger half: amortised constant time.
    if (this.left > LEFT_KEPT && this.left > this.rows) {
      this.left = 0;
      this.levels.forEach((level) => level.sweep());
    }
  }

  /** About how many rows a batch of at most this size takes. */
  expected(size: number): number {
    if (this.rows === 0) {
      return 0;
    }
    const mean = this.cost / this.rows;
    return Math.min(size, this.rows, Math.max(1, Math.ceil(this.budget.most / mean)));
  }

  /** Whether its rows cost as much as a batch may. */
  get isFull(): boolean {
    return this.cost >= this.budget.most;
  }

  /** The number of rows of the request that this many batches can take beside those that are here. */
  fitting(request: R, offset: number, count: number, batches: number): number {
    let free = batches * this.budget.most - this.cost;
    for (let row = offset; row < offset + count; row++) {
      free -= loadOf(request, row, 1).sum;
      if (free < 0) {
        return row - offset;
      }
    }
    return count;
  }

  *[Symbol.iterator](): Generator<Part<R>> {
    for (const level of this.levels) {
      yield* level;
    }
  }

  private addRow(request: R, offset: number, count: number): void {
    const load = loadOf(request, offset, count);
    const costClass = costClassOf(load.largest, this.budget.most);
    const arrival = this.arrivals++;
    const row = { ...load, request, offset, arrival, costClass, isGone: false };
    this.cost += load.sum;
    this.levelOf(row).add(row);
    const known = this.requests.get(request) ?? { rows: [], live: 0 };
    known.rows.push(row);
    known.live++;
    this.requests.set(request, known);
  }

  private remove(level: CostedLevel<R>, row: CostedRow<R>): void {
    const { request, count, sum } = row;
    row.isGone = true;
    level.remove(row);
    this.rows -= count;
    this.cost = this.rows === 0 ? 0 : this.cost - sum;
    const known = this.requests.get(request)!;
    if (--known.live === 0) {
      this.requests.delete(request);
    }
  }

  private levelOf({ request: { priority } }: CostedRow<R>): CostedLevel<R> {
    let level = this.levels.find((known) => known.priority === priority);
    if (!level) {
      level = new CostedLevel(priority, this.order.weights, this.budget);
      this.levels.push(level);
    }
    return level;
  }

  /** See `PriorityQueue.next`. */
  private next(spent: ReadonlySet<CostedLevel<R>>): CostedLevel<R> | undefined {
    let next: CostedLevel<R> | undefined;
    let first = Infinity;
    for (const level of this.levels) {
      const head = spent.has(level) ? undefined : level.head(this.isLive);
      const turn = head && head.request.arrivedAt - level.priority * this.order.ageing;
      if (turn !== undefined && turn < first) {
        first = turn;
        next = level;
      }
    }
    return next;
  }

  private readonly isLive = (row: CostedRow<R>): boolean => {
    const { request, count, isGone } = row;
    if (isGone) {
      return false;
    }
    if (request.isOver || request.deadline <= this.limit) {
      request.ready -= count;
      this.remove(this.levelOf(row), row);
      if (!request.isOver) {
        request.expire();
      }
      return false;
    }
    return true;
  };
}

/** The rows as parts: neighbours of one request are one part. */
function partsOf<R extends QueuedRequest>(rows: readonly CostedRow<R>[]): Part<R>[] {
  const parts: Part<R>[] = [];
  for (const { request, offset, count } of rows.toSorted((a, b) => a.arrival - b.arrival)) {
    const last = parts.at(-1);
    if (last?.request === request && last.offset + last.count === offset) {
      parts[parts.length - 1] = { ...last, count: last.count + count };
    } else {
      parts.push({ request, offset, count });
    }
  }
  return parts;
}
