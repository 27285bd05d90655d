import type { Origin } from '../partitions/partition.js';
import { currentContext, inContext } from './caller-context.js';

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
export function inOriginOf<T>({ origin }: { readonly origin: Origin | undefined }, work: () => T): T {
  return origin === undefined ? work() : withOrigin(origin, work);
}

/** Where the call under way has come from: `in-process` unless Nest is handling a request. */
export function currentOrigin(): Origin {
  return currentContext()?.origin ?? 'in-process';
}
