import { type Observable, Subject } from 'rxjs';
import type { Lane, Part, QueuedRequest } from './queued-request.js';

/** The largest number of stale parts that a window keeps. */
const LEFT_KEPT = 64;

/** The rows of a lane whose window is open. New rows take the places of rows that have left. */
export class OpenWindow<R extends QueuedRequest> {
  /** The number of rows at which the window is full, read when it opens. */
  readonly size: number;
  /** Milliseconds from its first row until it closes. */
  readonly timeout: number;
  /** Created only for windows with a timeout: the others close at their first row. */
  private closing: Subject<void> | undefined;
  private rows: Part<R>[] = [];
  private left = 0;
  /** The rows that a caller waits for. */
  live = 0;
  /** The places of rows that have left. */
  free = 0;
  /** It was closed to make room for a request that must run whole. */
  isFlushed = false;

  constructor(
    readonly lane: Lane,
    timeout: number,
  ) {
    this.size = lane.limits.batchSize;
    this.timeout = timeout;
  }

  /** Emits when the window closes before its timeout. */
  get close$(): Observable<void> {
    return (this.closing ??= new Subject());
  }

  /** The number of rows that still fit. */
  get room(): number {
    return this.size - this.live;
  }

  /** Its rows in the order of their arrival. */
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

  /** Adds rows in free places. */
  refill(part: Part<R>): void {
    this.free -= part.count;
    this.add(part);
  }

  /**
   * Removes the rows of a request that is over. A window without rows closes, so that the next row
   * starts a new timeout.
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

  /** Closes the window early, before a request that must run whole and does not fit. */
  flush(): void {
    this.isFlushed = true;
    this.close();
  }

  close(): void {
    this.closing?.next();
  }
}
