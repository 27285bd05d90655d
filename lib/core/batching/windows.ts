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
import { Fill, loadOf, UNLIMITED } from './fill.js';
import {
  type Lane,
  LinkedList,
  type OpenPart,
  type Part,
  type QueuedRequest,
} from './queued-request.js';

interface WindowOptions<T, Key> {
  readonly lane: (item: T) => Key;
  /** Read when the window opens. */
  readonly size: (lane: Key) => number;
  /** Milliseconds from a window's first item, read when it opens. */
  readonly timeout: (lane: Key) => number;
  /** Closes the lane's window; called when it opens. */
  readonly closed$?: (lane: Key) => Observable<unknown>;
}

export interface ClosedWindow<Key> {
  readonly lane: Key;
  readonly items: number;
}

/**
 * Emits when a window closes; each lane has one window at a time. We only count items, so a dropped
 * item costs no memory.
 *
 * A group lives from its window's first item until `bufferTime` has counted `size` items or
 * `timeout` ms. `bufferTime` only closes it: the batcher refills places in open windows, and a
 * buffer of RxJS can't. A lane without items holds no timer, and the source's end closes all
 * windows. Lossless if `next` doesn't push into the source.
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

/** New rows take the places of rows that left. */
export class OpenWindow<R extends QueuedRequest> {
  /** Milliseconds. */
  readonly timeout: number;
  private readonly closing = new Subject<void>();
  readonly parts = new LinkedList<OpenPart<R>>();
  /** Rows that a caller waits for. */
  private readonly fill: Fill;
  /** Places of rows that left. */
  private free = 0;
  /**
   * `flush` makes room for a request that must run whole; with `cost` a row exceeded the budget.
   */
  closedBy: 'flush' | 'cost' | undefined;

  constructor(
    readonly lane: Lane,
    readonly size: number,
    budget = UNLIMITED,
  ) {
    this.timeout = lane.limits.batchTimeout;
    this.fill = new Fill(budget, size);
  }

  get close$(): Observable<void> {
    return this.closing;
  }

  get rows(): number {
    return this.fill.rows;
  }

  takeParts(): readonly Part<R>[] {
    const parts = [...this.parts];
    parts.forEach(({ request }) => (request.open = undefined));
    return parts;
  }

  add(part: Part<R>): void {
    const { request, offset, count } = part;
    if (request.open) {
      request.open.count += count;
    } else {
      const open = { request, offset, count, before: undefined, after: undefined };
      request.open = open;
      this.parts.push(open);
    }
    this.fill.add(loadOf(request, offset, count));
  }

  fits(request: R, row: number): boolean {
    return this.fill.fits(loadOf(request, row, 1));
  }

  get isSpent(): boolean {
    return this.fill.isSpent;
  }

  freeFor(request: R, offset: number): number {
    const count = Math.min(this.free, request.size - offset);
    return count === 0 ? 0 : this.fill.fitting(request, offset, count);
  }

  hasRoomFor(request: R): boolean {
    return this.fill.fitting(request, 0, request.size) === request.size;
  }

  refill(part: Part<R>): void {
    this.free -= part.count;
    this.add(part);
  }

  /** Closes an empty window, so the next row starts a new timeout. */
  leave(request: R): void {
    const part: OpenPart<R> = request.open!;
    const { offset, count } = part;
    request.open = undefined;
    this.parts.remove(part);
    this.fill.remove(count, loadOf(request, offset, count).sum);
    this.free += count;
    if (this.fill.rows === 0) {
      this.close();
    }
  }

  close(closedBy?: 'flush' | 'cost'): void {
    this.closedBy = closedBy;
    this.closing.next();
  }
}
