import { AsyncLocalStorage, AsyncResource } from 'node:async_hooks';
import { type AbortSignalLike, type CallOptions, onAbort } from './call-options.js';

/** The context of the request that work is done for. */
export interface CallerContext {
  readonly origin: Origin;
  /** Aborts when the client has left; undefined where clients do not report that. */
  readonly signal: AbortSignal | undefined;
}

/** The caller of a handler that Nest runs. */
export class RequestCaller implements CallerContext {
  constructor(readonly origin: Origin) {}

  /** Created when first read. */
  get signal(): AbortSignal | undefined {
    return undefined;
  }
}

const contexts = new AsyncLocalStorage<CallerContext>();

/** Runs the work in the context. */
export function inContext<T>(context: CallerContext, work: () => T): T {
  return contexts.run(context, work);
}

/** The context of the current request; undefined where none was registered. */
export function currentContext(): CallerContext | undefined {
  return contexts.getStore();
}

/**
 * In an application with `requestContext`, the signal of the HTTP request that Nest is handling:
 * aborts when the client has closed the connection before it was answered. `undefined` elsewhere.
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

/** Runs the work with the origin of the lane, if it has one. */
export function inOriginOf<T>(
  { origin }: { readonly origin: Origin | undefined },
  work: () => T,
): T {
  return origin === undefined ? work() : withOrigin(origin, work);
}

/**
 * The origin of the current call, in an application with `requestContext`: `in-process` unless Nest
 * is handling a request.
 */
export function currentOrigin(): Origin {
  return currentContext()?.origin ?? 'in-process';
}

const outside = new AsyncResource('nestjs-serving');

/**
 * Runs the work outside the async context of any call: work shared by several callers must not
 * belong to the first of them.
 */
export function outsideCallContext<T>(work: () => T): T {
  return outside.runInAsyncScope(work);
}

/** The origin of a call. */
export type Origin = 'http' | 'rpc' | 'ws' | 'graphql' | 'in-process' | (string & {});

/** The options, with the signal of the current request if they have none. */
function inRequest<Options extends CallOptions>(options: Options): Options {
  const signal = options.signal ? undefined : currentSignal();
  return signal ? { ...options, signal } : options;
}

/**
 * The options of a stream, resolved now: its consumer may subscribe outside of the request, as Nest
 * does for `@Sse()`.
 */
export function streamInRequest<Options extends CallOptions>(
  options: Options,
): Options & { readonly origin: Origin } {
  const inside = inRequest(options);
  // Options may be an AbortController, whose inherited signal a copy would lose.
  return { ...inside, signal: inside.signal, origin: options.origin ?? currentOrigin() };
}

/** Makes a call with these options. */
export function callInRequest<Reply>(
  options: CallOptions,
  call: (options: CallOptions) => Promise<Reply>,
): Promise<Reply> {
  const inside = inRequest(options);
  return inside === options ? call(options) : markHandled(inside.signal, call(inside));
}

/**
 * The same reply. A caller may await it later: the rejection of a client that leaves in between
 * must not end the process as unhandled.
 */
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
