import type { Type } from '@nestjs/common';
import 'reflect-metadata';

/** What is to be said of a call, by the single arguments that its caller passes. */
export type OfArguments<Value> = (...args: never[]) => Value;

/** How the calls of a method batch. */
export interface BatchedOptions {
  /**
   * The most calls that share a batch.
   *
   * @default 32
   */
  readonly batchSize?: number;
  /**
   * Milliseconds, from its first call, for which a batch that is not full waits for more.
   *
   * @default 0 a call runs at once while no batch runs, else with the next batch
   */
  readonly batchTimeout?: number;
  /**
   * The most calls that may wait; one more fails at once with an OverloadedError.
   *
   * @default 10000
   */
  readonly maxQueue?: number;
  /**
   * Milliseconds in which a call must be answered; else it fails with a DeadlineExceededError, and
   * does not run if it has not yet. One that could not be answered in time, by what was learned of
   * the method, is refused at once with a DeadlineTooShortError.
   *
   * @default no limit
   */
  readonly timeout?: number;
  /**
   * How urgent a call with these arguments is: a whole number from -10 to 10. Of the calls that
   * wait, those of a higher one run first; a second of waiting makes up for one level. Calls below
   * 0 leave half of `maxQueue` to others.
   *
   * @default 0 for each
   */
  readonly priority?: OfArguments<number>;
  /**
   * In whose name a call with these arguments is made, `undefined` for nobody in particular:
   * tenants share the method fairly, and none can fill its queue alone.
   *
   * @default nobody in particular
   */
  readonly tenant?: OfArguments<string | undefined>;
  /**
   * How many batches of the method may run at the same time.
   *
   * @default 1
   */
  readonly partitions?: number;
  /**
   * Whether calls still queued at shutdown are run, or answered with a ServingClosedError.
   *
   * @default true
   */
  readonly drainOnShutdown?: boolean;
  /**
   * Milliseconds from the beginning of shutdown after which every call that is left is answered
   * with a ServingClosedError.
   *
   * @default 30000
   */
  readonly drainTimeout?: number;
  /**
   * Whether calls of different origins (HTTP, RPC, WebSocket, GraphQL, in-process) never share a
   * batch; in the method `currentOrigin()` then tells that of its batch.
   *
   * @default false
   */
  readonly separateOrigins?: boolean;
  /**
   * The type of each parameter as its caller passes it. TypeScript keeps of `ScoreDto[]` only that
   * it is an array, so pipes, which see every call by itself, need the class by name.
   */
  readonly types?: readonly Type[];
}

/** A method that carries `@Batched()`; one of `options` and `serving` is there. */
export interface BatchedMethod {
  readonly key: string | symbol;
  readonly original: (this: unknown, ...args: unknown[]) => unknown;
  readonly options?: BatchedOptions;
  readonly serving?: string;
}

const KEY = 'serving:batched';

/**
 * The property by which an instance finds the application that it belongs to; two applications
 * share nothing.
 */
export const METHODS = Symbol('batched methods');

export function addBatchedMethod(type: object, method: BatchedMethod): void {
  const own = (Reflect.getOwnMetadata(KEY, type) ?? []) as BatchedMethod[];
  Reflect.defineMetadata(KEY, [...own, method], type);
}

/** The batched methods of a class, its base classes' included. */
export function batchedMethodsOf(type: unknown): BatchedMethod[] {
  if (typeof type !== 'function') {
    return [];
  }
  const own = (Reflect.getOwnMetadata(KEY, type) ?? []) as BatchedMethod[];
  return [...own, ...batchedMethodsOf(Object.getPrototypeOf(type))];
}
