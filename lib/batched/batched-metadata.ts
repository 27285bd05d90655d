import 'reflect-metadata';
import type { BatchedMethod } from './batched-method.js';

const KEY = 'serving:batched';

/** The property by which an instance finds the application that it belongs to; two applications share nothing. */
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
