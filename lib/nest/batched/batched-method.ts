import type { Type } from '@nestjs/common';
import 'reflect-metadata';
import type { BatchCostOptions, BatchSizeOptions } from '../../core/definition/batch-size.js';
import type { OfArguments } from '../../core/serving/feature.js';
import type { OptionsOfCalls, QueueOptions } from '../../core/definition/serving-definition.js';

/** A batched method's queue: its limits, and the order of its calls. */
export interface BatchedQueueOptions extends Omit<
  QueueOptions,
  'maxCost' | 'cost' | 'maxRowsPerCall' | 'maxBytesPerCall' | 'tenant'
> {
  /**
   * A call's priority by its arguments: a whole number from -10 to 10. Queued calls of
   * higher priority run first; `priorityAgeing` milliseconds of waiting make up for one level.
   * Calls below 0 leave half of `maxRows` to others.
   *
   * @default 0
   */
  readonly priority?: OfArguments<number>;
  /**
   * A call's tenant by its arguments, or `undefined` for none: tenants share the method
   * fairly, and none can fill its queue alone.
   *
   * @default no tenant
   */
  readonly tenant?: OfArguments<string | undefined>;
}

/** Limits a batch's cost. */
export interface BatchedCostOptions extends Omit<BatchCostOptions, 'of'> {
  /** A call's cost by its arguments: a finite number above 0. An error fails that call alone. */
  readonly of: OfArguments<number>;
}

/** How large a batch of calls gets, by more than their number. */
export interface BatchedSizeOptions extends Omit<BatchSizeOptions, 'cost'> {
  /** Limits a batch's cost. */
  readonly cost?: BatchedCostOptions | undefined;
}

/**
 * A batched method's options: a serving's, as far as they make sense for one. A row is a call, and
 * the method has no label, keys, tensors or callbacks.
 */
export interface BatchedOptions extends Omit<
  OptionsOfCalls,
  | 'name'
  | 'rollout'
  | 'batchKeys'
  | 'preprocess'
  | 'postprocess'
  | 'queue'
  | 'batchSize'
  | 'deduplication'
> {
  /**
   * The largest number of calls in a batch; or an object with a budget for their cost, a latency
   * target, or both.
   *
   * @default 32
   */
  readonly batchSize?: number | BatchedSizeOptions;
  /**
   * The number of batches of the method that may run at the same time.
   *
   * @default 1
   */
  readonly partitions?: number;
  /**
   * Example calls, each a list of arguments. The method runs once for each on every partition
   * before the application listens, with `batchSize` calls like it, or with a `latencyTarget`
   * several times, also with one. Its class has had `onModuleInit`, and must be a singleton.
   *
   * @default []
   */
  readonly warmUp?: readonly (readonly unknown[])[];
  /** The queue's limits, and the order of its calls. */
  readonly queue?: BatchedQueueOptions;
  /**
   * Each parameter's type as its caller passes it. Of `ScoreDto[]`, TypeScript's metadata says
   * only that it is an array; pipes run per call and need the class.
   */
  readonly types?: readonly Type[];
}

export interface BatchedMethod {
  readonly key: string | symbol;
  readonly original: (this: unknown, ...args: unknown[]) => unknown;
  readonly options?: BatchedOptions;
  readonly serving?: string;
}

const KEY = 'serving:batched';

/** Leads an instance to its application's BatchedMethods: applications share nothing. */
export const METHODS = Symbol('batched methods');

export function addBatchedMethod(type: object, method: BatchedMethod): void {
  Reflect.defineMetadata(KEY, [...ownMethodsOf(type), method], type);
}

function ownMethodsOf(type: object): BatchedMethod[] {
  return (Reflect.getOwnMetadata(KEY, type) ?? []) as BatchedMethod[];
}

/** True if a class below the method's own has another method of its name. */
export function isOverridden(type: Function, method: BatchedMethod): boolean {
  return (
    !ownMethodsOf(type).includes(method) &&
    (Object.hasOwn(type.prototype as object, method.key) ||
      isOverridden(Object.getPrototypeOf(type) as Function, method))
  );
}

/** Includes base classes' methods. */
export function batchedMethodsOf(type: unknown): BatchedMethod[] {
  if (typeof type !== 'function') {
    return [];
  }
  return [...ownMethodsOf(type), ...batchedMethodsOf(Object.getPrototypeOf(type))];
}
