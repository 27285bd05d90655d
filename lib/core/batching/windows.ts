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
import { Fill, loadOf, UNLIMITED } from './budget.js';
import {
  type Lane,
  LinkedList,
  type OpenPart,
  type Part,
  type QueuedRequest,
} from './queued-request.js';

interface WindowOptions<T, Key> {
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

/** The rows of a lane whose window is open. New rows take the places of rows that have left. */
export class OpenWindow<R extends QueuedRequest> {
  /** Milliseconds from its first row until it closes. */
  readonly timeout: number;
  private readonly closing = new Subject<void>();
  /** Its rows in arrival order. */
  readonly parts = new LinkedList<OpenPart<R>>();
  /** The rows that a caller waits for. */
  private readonly fill: Fill;
  /** Places of rows that have left. */
  private free = 0;
  /**
   * Why it closed before its timeout: `flush` to make room for a request that must run whole,
   * `cost` since a row didn't fit into its budget.
   */
  closedBy: 'flush' | 'cost' | undefined;

  constructor(
    readonly lane: Lane,
    /** The rows of a full window, read when it opens. */
    readonly size: number,
    budget = UNLIMITED,
  ) {
    this.timeout = lane.limits.batchTimeout;
    this.fill = new Fill(budget, size);
  }

  /** Emits when the window closes before its timeout. */
  get close$(): Observable<void> {
    return this.closing;
  }

  get rows(): number {
    return this.fill.rows;
  }

  /** Takes its rows out, in arrival order. */
  takeParts(): readonly Part<R>[] {
    const parts = [...this.parts];
    parts.forEach(({ request }) => (request.entry.open = undefined));
    return parts;
  }

  add(part: Part<R>): void {
    const { request, offset, count } = part;
    const { entry } = request;
    if (entry.open) {
      entry.open.count += count;
    } else {
      const open = { request, offset, count, before: undefined, after: undefined };
      entry.open = open;
      this.parts.push(open);
    }
    this.fill.add(loadOf(request, offset, count));
  }

  /** True if the budget has room for the row. */
  fits(request: R, row: number): boolean {
    return this.fill.fits(loadOf(request, row, 1));
  }

  /** True if the budget has no room for a further row. */
  get isSpent(): boolean {
    return this.fill.isSpent;
  }

  /** How many of the request's rows, from `offset` on, take free places. */
  freeFor(request: R, offset: number): number {
    const count = Math.min(this.free, request.size - offset);
    return count === 0 ? 0 : this.fill.fitting(request, offset, count);
  }

  /** True if all of the request's rows fit. */
  hasRoomFor(request: R): boolean {
    return this.fill.fitting(request, 0, request.size) === request.size;
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
    const part: OpenPart<R> = request.entry.open!;
    const { offset, count } = part;
    request.entry.open = undefined;
    this.parts.remove(part);
    this.fill.remove(loadOf(request, offset, count));
    this.free += count;
    if (this.fill.rows === 0) {
      this.close();
    }
  }

  /** Closes the window early. */
  close(closedBy?: 'flush' | 'cost'): void {
    this.closedBy = closedBy;
    this.closing.next();
  }
}
