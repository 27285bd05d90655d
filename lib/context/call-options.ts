import { sharedListener } from './shared-listener.js';
import type { Origin } from './caller-context.js';

/** What a call needs of an AbortSignal. */
export interface AbortSignalLike {
  readonly aborted: boolean;
  readonly reason: unknown;
  throwIfAborted(): void;
  addEventListener(
    type: 'abort',
    listener: () => void,
    options?: { readonly once?: boolean },
  ): void;
  removeEventListener(type: 'abort', listener: () => void): void;
}

/** What a caller may say of one call. */
export interface CallOptions {
  /**
   * Ends the call: it rejects with the reason of the signal; rows that have not run yet do not run.
   *
   * @default `currentSignal()`: a call ends with the HTTP request that it is made in. One that is
   * to outlive its client has a signal of its own, such as that of a `new AbortController()`
   */
  readonly signal?: AbortSignalLike | undefined;
  /**
   * Milliseconds in which the call must be answered, from when it is made; else it rejects with a
   * DeadlineExceededError, and rows that have not run yet do not run. A call that could not be
   * answered in time, by what the serving has learned of itself, is refused at once with a
   * DeadlineTooShortError. A stream must have ended by then.
   *
   * @default `timeout` of the serving; of a stream, none
   */
  readonly timeout?: number | undefined;
  /**
   * A whole number from -10 to 10: rows of a higher one run first. A row that has waited
   * `priorityAgeing` ms longer makes up for one level. Calls below 0 leave half of the queue to
   * others.
   *
   * @default 0
   */
  readonly priority?: number | undefined;
  /**
   * In whose name the call is made: tenants share the serving fairly, and none can fill its queue
   * alone.
   *
   * @default what the `tenant` function of the serving says, else nobody in particular
   */
  readonly tenant?: string | undefined;
  /**
   * The key of the rows, as `batch.withKey(key)` says it: rows batch only with rows of their own
   * key.
   *
   * @default the key of the batch, else 'default'
   */
  readonly key?: string | undefined;
  /**
   * Where the call comes from, for a serving with `separateOrigins`.
   *
   * @default what Nest is handling: 'http', 'rpc', 'ws' or 'graphql'; elsewhere 'in-process'
   */
  readonly origin?: Origin | undefined;
}

/** What a caller may say of one streamed call. */
export interface StreamOptions<Hook extends string = never> extends CallOptions {
  /**
   * The hooks whose values are wanted. All rows of the call then run in one batch, so there can be
   * no more than fit into one.
   */
  readonly hooks?: readonly Hook[];
  /**
   * Runs the input alone and at once, as `run` does.
   *
   * @default false
   */
  readonly inline?: boolean;
}

/** Calls back when the signal aborts, at once if it has; the function that it returns ends that. */
export function onAbort(
  signal: AbortSignalLike | undefined,
  callback: (reason: unknown) => void,
): () => void {
  if (!signal) {
    return () => {};
  }
  const abort = (): void => callback(signal.reason);
  if (signal.aborted) {
    abort();
    return () => {};
  }
  return onAbortOf(signal, abort);
}

const onAbortOf = sharedListener<AbortSignalLike>((signal, callback) => {
  signal.addEventListener('abort', callback, { once: true });
  return () => signal.removeEventListener('abort', callback);
});
