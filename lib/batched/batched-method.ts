import type { Type } from '@nestjs/common';
import { Batcher, type BatchRecord, type Request, type Row } from '../batching/batcher.js';
import { InvalidOutputError, isError } from '../errors.js';
import { batchingOf } from '../serving/option-rules.js';

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
   * How many batches of the method may run at the same time.
   *
   * @default 1
   */
  readonly partitions?: number;
  /**
   * The type of each parameter as its caller passes it. TypeScript keeps of `ScoreDto[]` only that it is an array, so
   * pipes, which see every call by itself, need the class by name.
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

/** One call of a batched method. */
export interface MethodCall extends Request {
  readonly instance: object;
  readonly args: readonly unknown[];
  succeed(result: unknown): void;
}

/** A batcher whose batch function is the body of the method. */
export function batcherOf(
  name: string,
  { original, options = {} }: BatchedMethod,
  observe: (record: BatchRecord<MethodCall>) => void,
): Batcher<MethodCall> {
  const slots = Array.from({ length: options.partitions ?? 1 }, () => ({ prefetch: 0 }));
  return new Batcher({ name, ...batchingOf(options), slots, observe, dispatch: (rows) => runMethod(name, original, rows) });
}

/** Calls the method once for all rows and gives each caller its result; resolves with the error if the batch failed. */
async function runMethod(name: string, method: BatchedMethod['original'], rows: readonly Row<MethodCall>[]): Promise<unknown> {
  const calls = rows.map(({ request }) => request);
  try {
    const results: unknown = await method.apply(calls[0]!.instance, columnsOf(calls, method.length));
    if (!Array.isArray(results) || results.length !== calls.length) {
      const got = Array.isArray(results) ? `${results.length} results` : typeof results;
      throw new InvalidOutputError(
        `${name} ran for ${calls.length} callers and must return an array of ${calls.length} results; it returned ${got}`,
      );
    }
    calls.forEach((call, i) => (isError(results[i]) ? call.fail(results[i]) : call.succeed(results[i])));
    return undefined;
  } catch (error) {
    // As it is, and not wrapped: exception filters look for the class that the method throws.
    for (const call of calls) {
      call.fail(error);
    }
    return error;
  }
}

function columnsOf(calls: readonly MethodCall[], parameters: number): unknown[][] {
  const width = calls.reduce((widest, { args }) => Math.max(widest, args.length), parameters);
  return Array.from({ length: width }, (_, column) => calls.map(({ args }) => args[column]));
}
