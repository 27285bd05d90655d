import type { Type } from '@nestjs/common';
import 'reflect-metadata';

/** A function of the arguments that a caller passes. */
export type OfArguments<Value> = (...args: never[]) => Value;

/** The options of a batched method. */
export interface BatchedOptions {
  /**
   * The largest number of calls in a batch.
   *
   * @default 32
   */
  readonly batchSize?: number;
  /**
   * Milliseconds from its first call for which a batch that is not full waits for more calls.
   *
   * @default 0 a call runs at once while no batch runs, else with the next batch
   */
  readonly batchTimeout?: number;
  /**
   * The largest number of calls in the queue; beyond it a call fails at once with an
   * OverloadedError.
   *
   * @default 10000
   */
  readonly maxQueue?: number;
  /**
   * Milliseconds from the call to its answer. Afterwards it fails with a DeadlineExceededError, and
   * does not run if it has not. A call whose timeout is shorter than the expected time is refused
   * at once with a DeadlineTooShortError.
   *
   * @default no limit
   */
  readonly timeout?: number;
  /**
   * The priority of a call with these arguments: a whole number from -10 to 10. Queued calls of
   * higher priority run first; a second of waiting makes up for one level. Calls below 0 leave half
   * of `maxQueue` to others.
   *
   * @default 0
   */
  readonly priority?: OfArguments<number>;
  /**
   * The tenant of a call with these arguments, or `undefined` for none: tenants share the method
   * fairly, and none can fill its queue alone.
   *
   * @default no tenant
   */
  readonly tenant?: OfArguments<string | undefined>;
  /**
   * The number of batches of the method that may run at the same time.
   *
   * @default 1
   */
  readonly partitions?: number;
  /**
   * Whether calls that are queued at shutdown run, or fail with a ServingClosedError.
   *
   * @default true
   */
  readonly drainOnShutdown?: boolean;
  /**
   * Milliseconds from the beginning of shutdown after which every call that is left fails with a
   * ServingClosedError.
   *
   * @default 30000
   */
  readonly drainTimeout?: number;
  /**
   * Whether calls of different origins (HTTP, RPC, WebSocket, GraphQL, in-process) never share a
   * batch; in the method, `currentOrigin()` then returns the origin of the batch.
   *
   * @default false
   */
  readonly separateOrigins?: boolean;
  /**
   * The type of each parameter as its caller passes it. Of `ScoreDto[]`, TypeScript's metadata says
   * only that it is an array; pipes, which see each call by itself, need the class.
   */
  readonly types?: readonly Type[];
}

/** A method with `@Batched()`. It has either `options` or `serving`. */
export interface BatchedMethod {
  readonly key: string | symbol;
  readonly original: (this: unknown, ...args: unknown[]) => unknown;
  readonly options?: BatchedOptions;
  readonly serving?: string;
}

const KEY = 'serving:batched';

/**
 * The property of an instance that leads to the BatchedMethods of its application, so that two
 * applications share nothing.
 */
export const METHODS = Symbol('batched methods');

export function addBatchedMethod(type: object, method: BatchedMethod): void {
  const own = (Reflect.getOwnMetadata(KEY, type) ?? []) as BatchedMethod[];
  Reflect.defineMetadata(KEY, [...own, method], type);
}

/** The batched methods of a class and of its base classes. */
export function batchedMethodsOf(type: unknown): BatchedMethod[] {
  if (typeof type !== 'function') {
    return [];
  }
  const own = (Reflect.getOwnMetadata(KEY, type) ?? []) as BatchedMethod[];
  return [...own, ...batchedMethodsOf(Object.getPrototypeOf(type))];
}
