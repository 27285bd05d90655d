import type { Type } from '@nestjs/common';
import 'reflect-metadata';
import type { QueueOptions, ServingOptions } from '../definition/serving-definition.js';

/** A function of the arguments that a caller passes. */
export type OfArguments<Value> = (...args: never[]) => Value;

/** The limits of the queue of a batched method, and the order in which its calls run. */
export interface BatchedQueueOptions extends Pick<QueueOptions, 'separateOrigins'> {
  /**
   * The largest number of calls in the queue; beyond it a call fails at once with an
   * OverloadedError.
   *
   * @default 10000
   */
  readonly maxRows?: number;
  /**
   * The priority of a call with these arguments: a whole number from -10 to 10. Queued calls of
   * higher priority run first; a second of waiting makes up for one level. Calls below 0 leave half
   * of `maxRows` to others.
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
}

/** The options of a batched method. */
export interface BatchedOptions extends Pick<ServingOptions, 'shutdown'> {
  /**
   * The largest number of calls in a batch.
   *
   * @default 32
   */
  readonly batchSize?: number;
  /**
   * Milliseconds from its first call for which a batch that is not full waits for more calls. With 0
   * a call runs at once while no batch runs, else with the next batch.
   *
   * @default 0
   */
  readonly batchTimeout?: number;
  /**
   * Milliseconds in which 99 of 100 calls are to be answered. The size of batches then follows from
   * the measured run times of the method and from the load, with `batchSize` as its limit, and a
   * call that would be late fails at once with an OverloadedError. Leaves no place for
   * `batchTimeout`.
   *
   * @default no target
   */
  readonly latencyTarget?: number;
  /**
   * The number of batches of the method that may run at the same time.
   *
   * @default 1
   */
  readonly partitions?: number;
  /**
   * Milliseconds from the call to its answer. Afterwards it fails with a DeadlineExceededError, and
   * does not run if it has not. A call whose timeout is shorter than the expected time is refused
   * at once with a DeadlineTooShortError.
   *
   * @default no limit
   */
  readonly timeout?: number;
  /** The limits of the queue, and the order in which its calls run. */
  readonly queue?: BatchedQueueOptions;
  /**
   * The type of each parameter as its caller passes it. Of `ScoreDto[]`, TypeScript's metadata says
   * only that it is an array; pipes run per call and need the class.
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
