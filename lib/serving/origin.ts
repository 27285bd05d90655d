import { AsyncLocalStorage } from 'node:async_hooks';
import type { Origin } from '../partitions/partition.js';

const origins = new AsyncLocalStorage<Origin>();

/** Does the work as coming from the origin. */
export function withOrigin<T>(origin: Origin, work: () => T): T {
  return origins.run(origin, work);
}

/** Does the work of a lane: in its origin, where it has one. */
export function inOriginOf<T>({ origin }: { readonly origin: Origin | undefined }, work: () => T): T {
  return origin === undefined ? work() : withOrigin(origin, work);
}

/** Where the call under way has come from: `in-process` unless Nest is handling a request of an application that asks for origins. */
export function currentOrigin(): Origin {
  return origins.getStore() ?? 'in-process';
}
