import { type Observable, Subject } from 'rxjs';
import type { Lane, Part, QueuedRequest } from './queued-request.js';

/** A window keeps up to this many parts whose rows have left. */
const LEFT_KEPT = 64;

/**
 * The rows of a lane whose window is open. Rows that leave free their places, which the next rows
 * take.
 */
export class OpenWindow<R extends QueuedRequest> {
  /** The number of rows at which it is full, as the lane had it when the window opened. */
  readonly size: number;
  /** Milliseconds from its first row after which it closes. */
  readonly timeout: number;
  /** Made for those that have a timeout: the others close at their first row. */
  private closing: Subject<void> | undefined;
  private rows: Part<R>[] = [];
  private left = 0;
  /** The rows whose callers wait. */
  live = 0;
  /** Places of rows that have left. */
  free = 0;
  /** It was closed for a request that did not fit. */
  isFlushed = false;

  constructor(
    readonly lane: Lane,
    timeout: number,
  ) {
    this.size = lane.limits.batchSize;
    this.timeout = timeout;
  }

  /** Emits when the window closes before its time. */
  get close$(): Observable<void> {
    return (this.closing ??= new Subject());
  }

  /** The rows that it still has room for. */
  get room(): number {
    return this.size - this.live;
  }

  /** Its rows in the order in which they came. */
  get parts(): readonly Part<R>[] {
    return this.rows;
  }

  add(part: Part<R>): void {
    const last = this.rows.at(-1);
    if (last?.request === part.request) {
      this.rows[this.rows.length - 1] = { ...last, count: last.count + part.count };
    } else {
      this.rows.push(part);
    }
    this.live += part.count;
    part.request.open += part.count;
  }

  /** Adds rows in places that are free. */
  refill(part: Part<R>): void {
    this.free -= part.count;
    this.add(part);
  }

  /**
   * The request is over. A window without rows closes, so that the next row starts a clock of its
   * own.
   */
  leave(request: R): void {
    this.live -= request.open;
    this.free += request.open;
    request.open = 0;
    if (this.live === 0) {
      this.close();
    } else if (++this.left > LEFT_KEPT && this.left > this.rows.length / 2) {
      this.rows = this.rows.filter((part) => !part.request.isOver);
      this.left = 0;
    }
  }

  /** Closes it as it is, before a request that must run whole and does not fit. */
  flush(): void {
    this.isFlushed = true;
    this.close();
  }

  close(): void {
    this.closing?.next();
  }
}
