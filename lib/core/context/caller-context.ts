import { AsyncLocalStorage, AsyncResource } from 'node:async_hooks';
import { type AbortSignalLike, type CallOptions, onAbort } from './call-options.js';

/** A request's context. */
export interface CallerContext {
  readonly origin: Origin;
  /** Aborts when the client leaves; undefined if the transport doesn't report it. */
  readonly signal: AbortSignal | undefined;
}

/** A handler's caller. */
export class RequestCaller implements CallerContext {
  constructor(readonly origin: Origin) {}

  /** Subclasses create it on the first read. */
  get signal(): AbortSignal | undefined {
    return undefined;
  }
}

const contexts = new AsyncLocalStorage<CallerContext>();

/** Runs the work in the context. */
export function inContext<T>(context: CallerContext, work: () => T): T {
  return contexts.run(context, work);
}

/** Undefined if no context was registered. */
export function currentContext(): CallerContext | undefined {
  return contexts.getStore();
}

/**
 * With `requestContext`, the signal of the HTTP request that Nest is handling: it aborts when the
 * client closes the connection before the answer. `undefined` elsewhere.
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

/** Runs the work with the lane's origin, if any. */
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

/** For work that callers share: it must not belong to the first one. */
export function outsideCallContext<T>(work: () => T): T {
  return outside.runInAsyncScope(work);
}

/** A call's origin. */
export type Origin = 'http' | 'rpc' | 'ws' | 'graphql' | 'in-process' | (string & {});

/** Adds the current request's signal to options without a signal. */
function inRequest<Options extends CallOptions>(options: Options): Options {
  const signal = options.signal ? undefined : currentSignal();
  return signal ? { ...options, signal } : options;
}

/** Resolved now, because the consumer may subscribe outside of the request, as with `@Sse()`. */
export function streamInRequest<Options extends CallOptions>(
  options: Options,
): Options & { readonly origin: Origin } {
  const inside = inRequest(options);
  // Options may be an AbortController, whose inherited signal a copy would lose.
  return { ...inside, signal: inside.signal, origin: options.origin ?? currentOrigin() };
}

/** Adds the current request's signal to options without a signal. */
export function callInRequest<Reply>(
  options: CallOptions,
  call: (options: CallOptions) => Promise<Reply>,
): Promise<Reply> {
  const inside = inRequest(options);
  return inside === options ? call(options) : markHandled(inside.signal, call(inside));
}

/** The reply may be awaited later; if the client leaves first, it must not be unhandled. */
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
