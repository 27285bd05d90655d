import { AsyncLocalStorage, AsyncResource } from 'node:async_hooks';

/** What the calls of some work know of whoever waits for it. */
export interface CallerContext {
  readonly origin: Origin;
  /**
   * Aborts when nobody waits any more. Asked for by the calls that can use it, so it may be made
   * only then.
   */
  readonly signal: AbortSignal | undefined;
}

const contexts = new AsyncLocalStorage<CallerContext>();

/** Does the work for the caller. */
export function inContext<T>(context: CallerContext, work: () => T): T {
  return contexts.run(context, work);
}

/**
 * Whom the work under way is done for; nobody in particular outside of requests that Nest handles.
 */
export function currentContext(): CallerContext | undefined {
  return contexts.getStore();
}

/**
 * Aborts when the client of the HTTP request that Nest is handling has closed the connection before
 * it was answered; calls of servings end by it. `undefined` elsewhere.
 */
export function currentSignal(): AbortSignal | undefined {
  return currentContext()?.signal;
}

/** Does the work as coming from the origin. */
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

/** Does the work of a lane: in its origin, where it has one. */
export function inOriginOf<T>(
  { origin }: { readonly origin: Origin | undefined },
  work: () => T,
): T {
  return origin === undefined ? work() : withOrigin(origin, work);
}

/** Where the call under way has come from: `in-process` unless Nest is handling a request. */
export function currentOrigin(): Origin {
  return currentContext()?.origin ?? 'in-process';
}

const outside = new AsyncResource('nestjs-serving');

/**
 * Does the work in the async context of no caller: what several callers share must not belong to
 * the first of them.
 */
export function outsideCallContext<T>(work: () => T): T {
  return outside.runInAsyncScope(work);
}

/** Where a call came from. */
export type Origin = 'http' | 'rpc' | 'ws' | 'graphql' | 'in-process' | (string & {});
