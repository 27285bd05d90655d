import { AsyncLocalStorage, AsyncResource } from 'node:async_hooks';
import { InvalidInputError } from '../errors.js';
import { formatValue, typeName } from '../format.js';

/** The part of AbortSignal that calls use. */
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

/** A call's options. */
export interface CallOptions {
  /**
   * Cancels the call: it rejects with the signal's reason, and rows that have not started do not
   * run. See also `@RequestSignal()`.
   *
   * @default none; `currentSignal()` in an application with `requestContext`
   */
  readonly signal?: AbortSignalLike | undefined;
  /**
   * Milliseconds until the answer, or a stream's end. After that the call rejects with a
   * DeadlineExceededError, and rows that have not started do not run. If the expected time is
   * longer, the call is immediately refused with a DeadlineTooShortError.
   *
   * @default `timeout` of the serving; none for a stream
   */
  readonly timeout?: number | undefined;
  /**
   * A whole number from -10 to 10: rows of higher priority run first. Each `priorityAgeing` ms of
   * waiting makes up for one level. Calls below 0 leave half of the queue to others.
   *
   * @default 0
   */
  readonly priority?: number | undefined;
  /**
   * The call's tenant. Tenants share the serving fairly, and cannot fill its queue alone.
   *
   * @default what the serving's `tenant` function returns; otherwise no tenant
   */
  readonly tenant?: string | undefined;
  /**
   * The rows' key, as set by `batch.withKey(key)`. Only rows with the same key share batches.
   *
   * @default the batch's key; otherwise 'default'
   */
  readonly key?: string | undefined;
  /**
   * The call's origin, for a serving with `queue.separateOrigins`.
   *
   * @default `currentOrigin()`: 'http', 'rpc', 'ws' or 'graphql' in a request of that kind, else
   * 'in-process'
   */
  readonly origin?: Origin | undefined;
  /**
   * The label of the version that runs the call, such as a canary. Unknown versions fail the call
   * with an UnknownVersionError.
   *
   * @default the active version, or a canary by its share
   */
  readonly version?: string | undefined;
}

export const NO_OPTIONS: CallOptions = {};

/** A streamed call's options. */
export interface StreamOptions<Hook extends string = never> extends CallOptions {
  /** Hooks to include. All rows of the call then run in one batch, so they must fit into one. */
  readonly hooks?: readonly Hook[];
  /**
   * Runs the input alone in its batches, next in turn, as `run` does.
   *
   * @default false
   */
  readonly inline?: boolean;
}

/** Cheaper than AbortSignal listeners. */
export interface OwnSignal extends AbortSignalLike {
  onAbort(callback: () => void): () => void;
}

/** Calls back immediately if it has aborted. The result removes the callback. */
export function onAbort(
  signal: AbortSignalLike | undefined,
  callback: (reason: unknown) => void,
): () => void {
  if (!signal) {
    return nothing;
  }
  const abort = (): void => callback(signal.reason);
  if (signal.aborted) {
    abort();
    return nothing;
  }
  return isOwn(signal) ? signal.onAbort(abort) : onAbortOf(signal, abort);
}

const nothing = (): void => {};

function isOwn(signal: AbortSignalLike): signal is OwnSignal {
  return 'onAbort' in signal;
}

const onAbortOf = sharedListener<AbortSignalLike>((signal, callback) => {
  signal.addEventListener('abort', callback, { once: true });
  return () => {
    try {
      signal.removeEventListener('abort', callback);
    } catch {
      // One caller's broken signal must not fail others' rows. It calls nobody back.
    }
  };
});

export type Listen<Source> = (source: Source, callback: () => void) => () => void;

/**
 * Shares one listener between all callbacks: a source searches its listeners on each change, and
 * warns of a leak beyond ten.
 */
export function sharedListener<Source extends object>(listen: Listen<Source>): Listen<Source> {
  const sources = new WeakMap<Source, Waiting>();
  return (source, callback) => {
    const waiting = sources.get(source) ?? begin(source);
    const wake = (): void => callback();
    waiting.callbacks.add(wake);
    return () => {
      waiting.callbacks.delete(wake);
      if (waiting.callbacks.size === 0) {
        end(source, waiting);
      }
    };
  };

  function begin(source: Source): Waiting {
    const callbacks = new Set<() => void>();
    const stop = listen(source, () => {
      end(source, waiting);
      callbacks.forEach((wake) => wake());
    });
    const waiting = { callbacks, stop };
    sources.set(source, waiting);
    return waiting;
  }

  function end(source: Source, waiting: Waiting): void {
    if (sources.get(source) === waiting) {
      sources.delete(source);
      waiting.stop();
    }
  }
}

interface Waiting {
  readonly callbacks: Set<() => void>;
  readonly stop: () => void;
}

interface CallerContext {
  readonly origin: Origin;
  /** Undefined if the transport doesn't report that the client leaves. */
  readonly signal: AbortSignal | undefined;
}

export class RequestCaller implements CallerContext {
  constructor(readonly origin: Origin) {}

  /** Subclasses create it on the first read. */
  get signal(): AbortSignal | undefined {
    return undefined;
  }
}

const contexts = new AsyncLocalStorage<CallerContext>();

export function inContext<T>(context: CallerContext, work: () => T): T {
  return contexts.run(context, work);
}

export function currentContext(): CallerContext | undefined {
  return contexts.getStore();
}

/**
 * With `requestContext`, the signal of the HTTP request that Nest is handling: it aborts when the
 * client disconnects before the answer.
 */
export function currentSignal(): AbortSignal | undefined {
  return currentContext()?.signal;
}

/** Runs the work with this origin. */
export function withOrigin<T>(origin: Origin, work: () => T): T {
  const around = currentContext();
  const context = {
    origin,
    get signal() {
      return around?.signal;
    },
  };
  return inContext(context, work);
}

export function inOriginOf<T>(
  { origin }: { readonly origin: Origin | undefined },
  work: () => T,
): T {
  return origin === undefined ? work() : withOrigin(origin, work);
}

/** The current request's origin, with `requestContext`; otherwise `in-process`. */
export function currentOrigin(): Origin {
  return currentContext()?.origin ?? 'in-process';
}

const outside = new AsyncResource('nestjs-serving');

/** Shared work must not belong to its first caller. */
export function outsideCallContext<T>(work: () => T): T {
  return outside.runInAsyncScope(work);
}

/** A call's origin. */
export type Origin = 'http' | 'rpc' | 'ws' | 'graphql' | 'in-process' | (string & {});

/** @throws InvalidInputError for values whose options would be ignored: a signal, a list, a Map */
export function requireOptions(options: unknown): void {
  const isObject = typeof options === 'object' && options !== null;
  if (!isObject || 'aborted' in options || Symbol.iterator in options) {
    const given = isObject ? typeName(options) : formatValue(options);
    throw new InvalidInputError(
      `A call was given ${given} as its options; they are an object, such as { signal, timeout: 200 }`,
    );
  }
}

function inRequest<Options extends CallOptions>(options: Options): Options {
  if (options !== NO_OPTIONS) {
    requireOptions(options);
  }
  const signal = options.signal ? undefined : currentSignal();
  return signal ? { ...options, signal } : options;
}

/** Resolved now: the consumer may subscribe outside the request, as with `@Sse()`. */
export function streamInRequest<Options extends CallOptions>(
  options: Options,
): Options & { readonly origin: Origin } {
  const inside = inRequest(options);
  // Options may be an AbortController, whose inherited signal a copy would lose.
  return { ...inside, signal: inside.signal, origin: options.origin ?? currentOrigin() };
}

export function callInRequest<Reply>(
  options: CallOptions,
  call: (options: CallOptions) => Promise<Reply>,
): Promise<Reply> {
  const inside = inRequest(options);
  return inside === options ? call(options) : markHandled(inside.signal, call(inside));
}

/** A reply awaited after the client has left must not count as unhandled. */
function markHandled<Reply>(
  signal: AbortSignalLike | undefined,
  given: Promise<Reply>,
): Promise<Reply> {
  const follow = async (): Promise<Reply> => {
    try {
      return await given;
    } finally {
      stop();
    }
  };
  const reply = follow();
  const stop = onAbort(signal, () => void reply.catch(() => {}));
  return reply;
}
