import { FairQueue } from './fair-queue.js';
import type { LaneRows, Part, QueuedRequest } from './queued-request.js';

/** How rows are ordered. */
export interface QueueOrder {
  /** Milliseconds of waiting that outweigh one level of priority. */
  readonly ageing: number;
  /** The weights of tenants, by name; 1 for all others. */
  readonly weights: ReadonlyMap<string, number>;
}

interface Level<R extends QueuedRequest> {
  readonly priority: number;
  readonly rows: FairQueue<R>;
}

/** The number of stale requests below which a search is not worth its cost. */
const LEFT_KEPT = 64;

/**
 * The ready rows of one lane: by priority and age, then fairly by tenant, then in the order of
 * arrival.
 *
 * A row that has waited `ageing` ms longer than another goes before it although its priority is one
 * level lower. So no row starves.
 */
export class PriorityQueue<R extends QueuedRequest> implements LaneRows<R> {
  /** The levels that have rows; most often one. */
  private levels: Level<R>[] = [];
  private rows = 0;
  /** The number of requests that left since the last search for them. */
  private left = 0;

  constructor(private readonly order: QueueOrder) {}

  /** The rows that a caller waits for. */
  get size(): number {
    return this.rows;
  }

  add(part: Part<R>): void {
    const { request, count } = part;
    this.rows += count;
    request.ready += count;
    this.levelOf(request.priority).rows.add(part);
  }

  /** Whether there are rows of at least this priority. */
  reaches(priority: number, now: number): boolean {
    return this.live(now).some((level) => level.priority >= priority);
  }

  /**
   * Takes the next rows, as many as there is room for. Stops before a request that must run whole
   * and does not fit. Such a request that is larger than a batch arrived when batches were larger,
   * and is taken alone.
   *
   * The rows will have run at `until`. Rows whose deadline is earlier fail instead, as long as
   * there are others: if they ran, the rows behind them would be late in turn.
   */
  take(room: number, now: number, until = now): Part<R>[] {
    const limit = this.levels.some(({ rows }) => rows.hasRowsAfter(until)) ? until : now;
    const parts: Part<R>[] = [];
    const first = this.next(limit)?.rows.peek(limit)?.request;
    const most = first?.whole ? Math.max(room, first.size) : room;
    for (let free = most, level = this.next(limit); level && free > 0; level = this.next(limit)) {
      const part = level.rows.take(free, limit);
      if (!part) {
        break;
      }
      free -= part.count;
      this.rows -= part.count;
      part.request.ready -= part.count;
      parts.push(part);
    }
    return parts;
  }

  /** Removes the rows of a request that is over, at the latest when they are next. */
  leave(request: R): void {
    if (request.ready > 0) {
      this.rows -= request.ready;
      request.ready = 0;
      this.left++;
    }
    // Searches when stale requests are the larger half: amortised constant time.
    if (this.left > LEFT_KEPT && this.left > this.rows) {
      this.left = 0;
      this.levels.forEach(({ rows }) => rows.sweep());
    }
  }

  *[Symbol.iterator](): Generator<Part<R>> {
    for (const { rows } of this.levels) {
      yield* rows;
    }
  }

  private levelOf(priority: number): Level<R> {
    const [first] = this.levels;
    let level =
      first?.priority === priority
        ? first
        : this.levels.find((known) => known.priority === priority);
    if (!level) {
      level = { priority, rows: new FairQueue(this.order.weights) };
      this.levels.push(level);
    }
    return level;
  }

  /**
   * The level whose next rows are first: the oldest, after a head start for each level of priority.
   */
  private next(now: number): Level<R> | undefined {
    if (this.levels.length < 2) {
      return this.levels[0];
    }
    let next: Level<R> | undefined;
    let first = Infinity;
    for (const level of this.live(now)) {
      const turn = level.rows.peek(now)!.request.arrivedAt - level.priority * this.order.ageing;
      if (turn < first) {
        first = turn;
        next = level;
      }
    }
    return next;
  }

  private live(now: number): readonly Level<R>[] {
    if (this.levels.some(({ rows }) => !rows.peek(now))) {
      this.levels = this.levels.filter(({ rows }) => rows.peek(now));
    }
    return this.levels;
  }
}
