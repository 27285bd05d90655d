import {
  bufferTime,
  groupBy,
  merge,
  mergeMap,
  NEVER,
  type Observable,
  type OperatorFunction,
  reduce,
} from 'rxjs';

export interface WindowOptions<T, Lane> {
  /** Items share a window only with items of their own lane. */
  readonly lane: (item: T) => Lane;
  /** The number of items that closes a window, read when the window opens. */
  readonly size: (lane: Lane) => number;
  /**
   * Milliseconds from its first item until a window closes, read when it opens; 0 closes it at its
   * first item.
   */
  readonly timeout: (lane: Lane) => number;
  /** Closes the open window of the lane when it emits; called when the window opens. */
  readonly closed$?: (lane: Lane) => Observable<unknown>;
}

/** A window that has closed. */
export interface ClosedWindow<Lane> {
  readonly lane: Lane;
  /** The number of items in it. */
  readonly items: number;
}

/**
 * Emits when a window closes; each lane has one window at a time. Counts the items and holds none
 * of them, so an item that is dropped while its window is open costs no memory here.
 *
 * A group lives exactly as long as its window: it opens with the first item and ends when
 * `bufferTime` has counted `size` items or `timeout` ms. `bufferTime` only closes the group, since
 * the batcher refills places in open windows, which a buffer of RxJS cannot. A lane without items
 * holds no timer and no memory, and the end of the source closes all windows. Lossless as long as
 * the consumer does not push into the source from inside `next`.
 */
export function windowsBy<T, Lane>({
  lane,
  size,
  timeout,
  closed$ = () => NEVER,
}: WindowOptions<T, Lane>): OperatorFunction<T, ClosedWindow<Lane>> {
  const closing = (lane$: Observable<T> & { readonly key: Lane }): Observable<unknown> => {
    const { key } = lane$;
    const span = timeout(key);
    return span === 0 ? lane$ : merge(lane$.pipe(bufferTime(span, null, size(key))), closed$(key));
  };
  return (items$) =>
    items$.pipe(
      groupBy(lane, { duration: closing }),
      mergeMap((lane$) => lane$.pipe(reduce(withOneMore<Lane>, { lane: lane$.key, items: 0 }))),
    );
}

function withOneMore<Lane>({ lane, items }: ClosedWindow<Lane>): ClosedWindow<Lane> {
  return { lane, items: items + 1 };
}
