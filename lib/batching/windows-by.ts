import { type Observable, type OperatorFunction, bufferTime, groupBy, merge, mergeMap, NEVER, reduce } from 'rxjs';

export interface WindowOptions<T, Lane> {
  /** Items share a window only with items of their own lane. */
  readonly lane: (item: T) => Lane;
  /** The number of items that closes a window; read when the window opens. */
  readonly size: (lane: Lane) => number;
  /** Milliseconds from the first item after which a window closes; 0 closes it at its first item. Read when it opens. */
  readonly timeout: (lane: Lane) => number;
  /** Closes every open window when it emits. */
  readonly flush$?: Observable<unknown>;
}

/** A window that has closed. */
export interface ClosedWindow<T, Lane> {
  readonly lane: Lane;
  readonly rows: T[];
  /** The size and the timeout that it had when it opened. */
  readonly size: number;
  readonly timeout: number;
}

/**
 * Collects items into windows, a window per lane at a time.
 *
 * A group lives exactly as long as its window: it opens with the window's first item and ends when `bufferTime` has counted
 * `size` items or `timeout` ms. So a lane without rows holds no timer and no memory, and the end of the source closes what
 * is open. Lossless as long as the consumer does not push into the source from inside `next`.
 */
export function windowsBy<T, Lane>({
  lane,
  size,
  timeout,
  flush$ = NEVER,
}: WindowOptions<T, Lane>): OperatorFunction<T, ClosedWindow<T, Lane>> {
  const closing = (lane$: Observable<T> & { readonly key: Lane }): Observable<unknown> => {
    const span = timeout(lane$.key);
    return span === 0 ? lane$ : merge(lane$.pipe(bufferTime(span, null, size(lane$.key))), flush$);
  };
  return (items$) =>
    items$.pipe(
      groupBy(lane, { duration: closing }),
      mergeMap((lane$) => {
        const { key } = lane$;
        const window: ClosedWindow<T, Lane> = { lane: key, size: size(key), timeout: timeout(key), rows: [] };
        return lane$.pipe(reduce(withRow, window));
      }),
    );
}

function withRow<T, Lane>(window: ClosedWindow<T, Lane>, row: T): ClosedWindow<T, Lane> {
  window.rows.push(row);
  return window;
}
