import { AsyncLocalStorage } from 'node:async_hooks';
import type { Origin } from '../partitions/partition.js';

/** What the calls of some work know of whoever waits for it. */
export interface CallerContext {
  readonly origin: Origin;
  /** Aborts when nobody waits any more. Asked for by the calls that can use it, so it may be made only then. */
  readonly signal: AbortSignal | undefined;
}

const contexts = new AsyncLocalStorage<CallerContext>();

/** Does the work for the caller. */
export function inContext<T>(context: CallerContext, work: () => T): T {
  return contexts.run(context, work);
}

/** Whom the work under way is done for; nobody in particular outside of requests that Nest handles. */
export function currentContext(): CallerContext | undefined {
  return contexts.getStore();
}

/**
 * Aborts when the client of the HTTP request that Nest is handling has closed the connection before it was answered; calls of
 * servings end by it. `undefined` elsewhere.
 */
export function currentSignal(): AbortSignal | undefined {
  return currentContext()?.signal;
}
