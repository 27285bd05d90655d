import { AsyncLocalStorage, AsyncResource } from 'node:async_hooks';

/** The context of the request that work is done for. */
export interface CallerContext {
  readonly origin: Origin;
  /**
   * Aborts when the client has left. Read only by calls that use it, so that it is created only
   * then.
   */
  readonly signal: AbortSignal | undefined;
}

const contexts = new AsyncLocalStorage<CallerContext>();

/** Runs the work in the context. */
export function inContext<T>(context: CallerContext, work: () => T): T {
  return contexts.run(context, work);
}

/** The context of the current request; undefined outside of requests that Nest handles. */
export function currentContext(): CallerContext | undefined {
  return contexts.getStore();
}

/**
 * The signal of the HTTP request that Nest is handling: aborts when the client has closed the
 * connection before it was answered, and cancels calls of servings. `undefined` elsewhere.
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

/** The origin of the current call: `in-process` unless Nest is handling a request. */
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
