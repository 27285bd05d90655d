import { Observable } from 'rxjs';
import { leave } from './source.js';

export type OpenStream<T> = (signal: AbortSignal) => AsyncIterator<T>;

/**
 * A call's events, as an Observable and an async iterable.
 *
 * Each subscription or iteration starts its own call. Events are pulled one by one, so a slow
 * consumer holds back its own call. `unsubscribe` and `break` end the call and free its work.
 */
export class ServingStream<T> extends Observable<T> implements AsyncIterable<T> {
  constructor(private readonly open: OpenStream<T>) {
    super((subscriber) => {
      const left = new AbortController();
      const events = open(left.signal);
      const push = async (): Promise<void> => {
        for (
          let event = await events.next();
          !event.done && !subscriber.closed;
          event = await events.next()
        ) {
          subscriber.next(event.value);
        }
        subscriber.complete();
      };
      push().catch((error: unknown) => subscriber.error(error));
      return () => {
        left.abort();
        leave(events);
      };
    });
  }

  /** Starts a call and iterates over its events. */
  [Symbol.asyncIterator](): AsyncIterator<T, undefined> & AsyncIterableIterator<T> {
    const left = new AbortController();
    const events = this.open(left.signal);
    return {
      next: () => events.next(),
      return: async () => {
        left.abort();
        await events.return?.();
        return { done: true, value: undefined };
      },
      [Symbol.asyncIterator]() {
        return this;
      },
    };
  }
}
