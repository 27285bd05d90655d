import { AsyncResource } from 'node:async_hooks';

const outside = new AsyncResource('nestjs-serving');

/** Does the work in the async context of no caller: what several callers share must not belong to the first of them. */
export function outsideOfCalls<T>(work: () => T): T {
  return outside.runInAsyncScope(work);
}
