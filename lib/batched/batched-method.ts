import type { Type } from '@nestjs/common';
import { Batcher, type BatchOutcome, type BatchRecord, type Lane, type Request, type Row } from '../batching/batcher.js';
import { DEFAULT_KEY } from '../batch/batch.js';
import { InvalidOutputError, isError } from '../errors.js';
import type { Origin } from '../partitions/partition.js';
import type { CallWatch } from '../serving/call-watch.js';
import { batchingOf } from '../serving/option-rules.js';
import { inOriginOf } from '../serving/origin.js';
import { batchObserver } from '../serving/batch-observer.js';
import type { BatchLabels } from '../serving/serving-event.js';
import type { ServingEvents } from '../serving/serving-events.js';

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
   * Whether calls of different origins (HTTP, RPC, WebSocket, GraphQL, in-process) never share a batch; in the method
   * `currentOrigin()` then tells that of its batch.
   *
   * @default false
   */
  readonly separateOrigins?: boolean;
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

/** Where the calls of one instance and origin wait for one another. */
export interface MethodLane extends Lane {
  readonly origin: Origin | undefined;
}

/** One call of a batched method. */
export interface MethodCall extends Request {
  readonly lane: MethodLane;
  readonly instance: object;
  readonly args: readonly unknown[];
  readonly watch: CallWatch | undefined;
  isOver: boolean;
  succeed(result: unknown): void;
}

/** A batcher whose batch function is the body of the method. */
export function batcherOf(name: string, { original, options = {} }: BatchedMethod, events: ServingEvents): Batcher<MethodCall> {
  const slots = Array.from({ length: options.partitions ?? 1 }, () => ({ prefetch: 0 }));
  const { maxQueue } = batchingOf(options);
  return new Batcher({
    name,
    maxQueue,
    nextBatch: () => events.nextBatch(),
    slots,
    observer: batchObserver(events, (record: BatchRecord<MethodCall>) => labelsOf(name, record)),
    dispatch: (rows) => runMethod(name, original, rows),
  });
}

function labelsOf(serving: string, { rows }: BatchRecord<MethodCall>): BatchLabels {
  const calls = rows.flatMap(({ request }) => request.watch?.call ?? []);
  return { serving, key: DEFAULT_KEY, origin: rows[0]!.request.lane.origin, calls };
}

/** Calls the method once for all rows and gives each caller its result. */
async function runMethod(
  name: string,
  method: BatchedMethod['original'],
  rows: readonly Row<MethodCall>[],
): Promise<BatchOutcome> {
  const calls = rows.map(({ request }) => request);
  const [{ instance, lane }] = calls as [MethodCall];
  calls.forEach(({ watch }) => watch?.running());
  try {
    const run = (): unknown => method.apply(instance, columnsOf(calls, method.length));
    const results: unknown = await inOriginOf(lane, run);
    if (!Array.isArray(results) || results.length !== calls.length) {
      const got = Array.isArray(results) ? `${results.length} results` : typeof results;
      throw new InvalidOutputError(
        `${name} ran for ${calls.length} callers and must return an array of ${calls.length} results; it returned ${got}`,
      );
    }
    calls.forEach((call, i) => (isError(results[i]) ? call.fail(results[i]) : call.succeed(results[i])));
    return {};
  } catch (error) {
    // As it is, and not wrapped: exception filters look for the class that the method throws.
    for (const call of calls) {
      call.fail(error);
    }
    return { error };
  }
}

function columnsOf(calls: readonly MethodCall[], parameters: number): unknown[][] {
  const width = calls.reduce((widest, { args }) => Math.max(widest, args.length), parameters);
  return Array.from({ length: width }, (_, column) => calls.map(({ args }) => args[column]));
}
