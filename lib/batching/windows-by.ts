import { type Observable, type OperatorFunction, bufferTime, groupBy, merge, mergeMap, NEVER, toArray } from 'rxjs';

export interface WindowOptions<T> {
  /** Items share a window only with items of their own lane. */
  readonly lane: (item: T) => unknown;
  /** The number of items that closes a window; read when the window opens. */
  readonly size: () => number;
  /** Milliseconds from the first item after which a window closes; 0 closes it at its first item. Read when it opens. */
  readonly timeout: () => number;
  /** Closes every open window when it emits. */
  readonly flush$?: Observable<unknown>;
}

/**
 * Collects items into windows, a window per lane at a time.
 *
 * A group lives exactly as long as its window: it opens with the window's first item and ends when `bufferTime` has counted
 * `size` items or `timeout` ms. So a lane without rows holds no timer and no memory, and the end of the source closes what
 * is open. Lossless as long as the consumer does not push into the source from inside `next`.
 */
export function windowsBy<T>({ lane, size, timeout, flush$ = NEVER }: WindowOptions<T>): OperatorFunction<T, T[]> {
  const closing = (lane$: Observable<T>): Observable<unknown> => {
    const span = timeout();
    return span === 0 ? lane$ : merge(lane$.pipe(bufferTime(span, null, size())), flush$);
  };
  return (items$) =>
    items$.pipe(
      groupBy(lane, { duration: closing }),
      mergeMap((lane$) => lane$.pipe(toArray())),
    );
}
