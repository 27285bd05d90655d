import { FairQueue } from './fair-queue.js';
import type { Part, QueuedRequest } from './queued-request.js';

/** What decides which rows run first. */
export interface QueueOrder {
  /** Milliseconds of waiting that count as much as one level of priority. */
  readonly ageing: number;
  /** The shares of tenants, by name; of all others 1. */
  readonly weights: ReadonlyMap<string, number>;
}

interface Level<R extends QueuedRequest> {
  readonly priority: number;
  readonly rows: FairQueue<R>;
}

/** So few requests that have left are not worth a search. */
const LEFT_KEPT = 64;

/**
 * The rows of one lane that are ready to run: by priority, in which age counts, then fairly by
 * tenant, then first come, first served.
 *
 * A level of priority is worth so much waiting that nobody starves: a row that has waited `ageing`
 * ms longer than another goes before it although it is a level lower.
 */
export class PriorityQueue<R extends QueuedRequest> {
  /** Those that have rows; most often one. */
  private levels: Level<R>[] = [];
  private rows = 0;
  /** The requests that have left since those were last looked for. */
  private left = 0;

  constructor(private readonly order: QueueOrder) {}

  /** The rows for which somebody waits. */
  get size(): number {
    return this.rows;
  }

  add(part: Part<R>): void {
    const { request, count } = part;
    this.rows += count;
    request.ready += count;
    this.levelOf(request.priority).rows.add(part);
  }

  /** Whether there are rows of this priority, or of a higher one. */
  reaches(priority: number, now: number): boolean {
    return this.live(now).some((level) => level.priority >= priority);
  }

  /**
   * Takes the rows that are next, as many as there is room for; ends before a request that must run
   * whole and does not fit. One that does not even fit alone came when batches were larger, and is
   * taken alone.
   *
   * What is taken will have run at `until`. Rows whose deadline will have passed by then fail
   * instead, as long as there are others: if they ran, those behind them would be late in their
   * turn, and at last everybody.
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

  /** The request is over: its rows will not be taken. */
  leave(request: R): void {
    if (request.ready > 0) {
      this.rows -= request.ready;
      request.ready = 0;
      this.left++;
    }
    // Looked for when they are the larger half, so that a search moves as many as it drops.
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
   * The level whose next rows go first: those that would have come first, had each level a head
   * start.
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
