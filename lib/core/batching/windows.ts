import {
  bufferTime,
  groupBy,
  merge,
  mergeMap,
  NEVER,
  type Observable,
  type OperatorFunction,
  reduce,
  Subject,
} from 'rxjs';
import type { Lane, Part, QueuedRequest } from './queued-request.js';
import { type Budget, Fill, loadOf } from './budget.js';

export interface WindowOptions<T, Key> {
  /** Items share a window only with items of their own lane. */
  readonly lane: (item: T) => Key;
  /** The number of items that closes a window, read when the window opens. */
  readonly size: (lane: Key) => number;
  /** Milliseconds from its first item until a window closes, read when it opens. */
  readonly timeout: (lane: Key) => number;
  /** Closes the open window of the lane when it emits; called when the window opens. */
  readonly closed$?: (lane: Key) => Observable<unknown>;
}

/** A window that has closed. */
export interface ClosedWindow<Key> {
  readonly lane: Key;
  /** The number of items in it. */
  readonly items: number;
}

/**
 * Emits when a window closes; each lane has one window at a time. Counts the items and holds none,
 * so an item that is dropped while its window is open costs no memory here.
 *
 * A group lives as long as its window: from its first item until `bufferTime` has counted `size`
 * items or `timeout` ms. We use `bufferTime` only to close it, since the batcher refills places in
 * open windows, which a buffer of RxJS can't. A lane without items holds no timer, and the source's
 * end closes all windows. Lossless as long as `next` doesn't push into the source.
 */
export function windowsBy<T, Key>({
  lane,
  size,
  timeout,
  closed$ = () => NEVER,
}: WindowOptions<T, Key>): OperatorFunction<T, ClosedWindow<Key>> {
  const closing = (lane$: Observable<T> & { readonly key: Key }): Observable<unknown> => {
    const { key } = lane$;
    return merge(lane$.pipe(bufferTime(timeout(key), null, size(key))), closed$(key));
  };
  return (items$) =>
    items$.pipe(
      groupBy(lane, { duration: closing }),
      mergeMap((lane$) => lane$.pipe(reduce(withOneMore<Key>, { lane: lane$.key, items: 0 }))),
    );
}

function withOneMore<Key>({ lane, items }: ClosedWindow<Key>): ClosedWindow<Key> {
  return { lane, items: items + 1 };
}

/** The largest number of stale parts that a window keeps. */
const LEFT_KEPT = 64;

/** The rows of a lane whose window is open. New rows take the places of rows that have left. */
export class OpenWindow<R extends QueuedRequest> {
  /** Milliseconds from its first row until it closes. */
  readonly timeout: number;
  private readonly closing = new Subject<void>();
  private rows: Part<R>[] = [];
  private left = 0;
  /** The rows that a caller waits for. */
  live = 0;
  /** The places of rows that have left. */
  free = 0;
  /**
   * Why it closed before its timeout: `flush` to make room for a request that must run whole, `cost`
   * since a row did not fit into its budget.
   */
  closedBy: 'flush' | 'cost' | undefined;

  constructor(
    readonly lane: Lane,
    /** The number of rows at which it is full, read when it opens. */
    readonly size: number,
  ) {
    this.timeout = lane.limits.batchTimeout;
  }

  /** Emits when the window closes before its timeout. */
  get close$(): Observable<void> {
    return this.closing;
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

  /** Whether the row fits, apart from its place. Only a window with a budget may refuse it. */
  fits(_request: R, _row: number): boolean {
    return true;
  }

  /** Whether no further row fits, apart from its place. */
  get isSpent(): boolean {
    return false;
  }

  /** The number of rows of the request, from the one at `offset` on, that take free places. */
  freeFor({ size }: R, offset: number): number {
    return Math.min(this.free, size - offset);
  }

  /** Whether all rows of the request fit. */
  hasRoomFor({ size }: R): boolean {
    return this.room >= size;
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

  /** Closes the window early. */
  close(closedBy?: 'flush' | 'cost'): void {
    this.closedBy = closedBy;
    this.closing.next();
  }
}

/** An open window whose rows may cost no more than a batch may. */
export class CostedWindow<R extends QueuedRequest> extends OpenWindow<R> {
  private readonly fill: Fill;

  constructor(lane: Lane, size: number, budget: Budget) {
    super(lane, size);
    this.fill = new Fill(budget, size);
  }

  override fits(request: R, row: number): boolean {
    return this.fill.fits(loadOf(request, row, 1));
  }

  override get isSpent(): boolean {
    return this.fill.isFull;
  }

  override add(part: Part<R>): void {
    super.add(part);
    this.fill.add(loadOf(part.request, part.offset, part.count));
  }

  override leave(request: R): void {
    // Its rows in this window are the last that it submitted.
    this.fill.remove(loadOf(request, request.size - request.open, request.open));
    super.leave(request);
  }

  override freeFor(request: R, offset: number): number {
    return this.fill.fitting(request, offset, super.freeFor(request, offset));
  }

  override hasRoomFor(request: R): boolean {
    const { size } = request;
    return super.hasRoomFor(request) && this.fill.fitting(request, 0, size) === size;
  }
}
