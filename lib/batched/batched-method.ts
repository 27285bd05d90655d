import type { Type } from '@nestjs/common';
import 'reflect-metadata';
import { Batcher, type BatchOutcome, type BatchRecord } from '../batching/batcher.js';
import type { Lane, Part, QueuedRequest, RequestQueue } from '../batching/queued-request.js';
import { DEFAULT_KEY } from '../batch/batch.js';
import { InvalidOutputError, isError } from '../errors.js';
import { settledRows } from '../partitions/settled-rows.js';
import type { ResolvedCallOptions } from '../execution/resolved-call-options.js';
import type { Counters } from '../events/counters.js';
import type { CallRecorder } from '../events/call-recorder.js';
import { batchingOf, DEFAULT_AGEING } from '../definition/option-rules.js';
import { inOriginOf, type Origin } from '../context/caller-context.js';
import { batchObserver, type EventHub } from '../events/event-hub.js';
import type { BatchLabels } from '../events/serving-event.js';

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

/** Where the calls of one instance and origin wait for one another. */
export interface MethodLane extends Lane {
  readonly origin: Origin | undefined;
}

/** One call of a batched method. */
export class MethodCall implements QueuedRequest {
  readonly size = 1;
  readonly whole = false;
  readonly priority: number;
  readonly tenant: string;
  readonly deadline: number;
  readonly cost = 0;
  arrivedAt = 0;
  waiting = 0;
  open = 0;
  ready = 0;
  isOver = false;
  readonly answer: Promise<unknown>;
  queue: RequestQueue | undefined;
  private resolve!: (result: unknown) => void;
  private reject!: (error: unknown) => void;

  constructor(
    readonly lane: MethodLane,
    readonly instance: object,
    readonly args: readonly unknown[],
    readonly watch: CallRecorder | undefined,
    private readonly terms: ResolvedCallOptions,
  ) {
    this.priority = terms.priority;
    this.tenant = terms.tenant;
    this.deadline = terms.deadline;
    this.answer = new Promise((resolve, reject) => {
      this.resolve = resolve;
      this.reject = reject;
    });
  }

  succeed(result: unknown): void {
    this.isOver = true;
    this.resolve(result);
  }

  fail(error: unknown): void {
    if (!this.isOver) {
      this.isOver = true;
      this.queue?.leave(this);
      this.reject(error);
    }
  }

  expire(): void {
    this.fail(this.terms.deadlineError());
  }
}

/** A batcher whose batch function is the body of the method. */
export function batcherOf(
  name: string,
  { original, options = {} }: BatchedMethod,
  events: EventHub,
  counters: Counters,
): Batcher<MethodCall> {
  const targets = Array.from({ length: options.partitions ?? 1 }, () => ({ prefetch: 0 }));
  const { maxQueue } = batchingOf(options);
  return new Batcher({
    name,
    maxQueue,
    order: { ageing: DEFAULT_AGEING, weights: new Map() },
    nextBatch: () => events.nextBatch(),
    targets,
    observer: batchObserver(
      events,
      (record: BatchRecord<MethodCall>) => labelsOf(name, record),
      counters,
    ),
    dispatch: ({ parts }) => runMethod(name, original, parts),
  });
}

function labelsOf(serving: string, { parts }: BatchRecord<MethodCall>): BatchLabels {
  const calls = parts.flatMap(({ request }) => request.watch?.call ?? []);
  return { serving, key: DEFAULT_KEY, origin: parts[0]!.request.lane.origin, calls };
}

/** Calls the method once for all calls and gives each caller its result. */
async function runMethod(
  name: string,
  method: BatchedMethod['original'],
  parts: readonly Part<MethodCall>[],
): Promise<BatchOutcome<MethodCall>> {
  const calls = parts.map(({ request }) => request);
  const [{ instance, lane }] = calls as [MethodCall];
  calls.forEach(({ watch }) => watch?.running());
  try {
    const run = (): unknown => method.apply(instance, columnsOf(calls, method.length));
    const returned: unknown = settledRows(await inOriginOf(lane, run));
    const results = returned instanceof Promise ? await returned : returned;
    if (!Array.isArray(results) || results.length !== calls.length) {
      const got = Array.isArray(results) ? `${results.length} results` : typeof results;
      throw new InvalidOutputError(
        `${name} ran for ${calls.length} callers and must return an array of ${calls.length} ` +
          `results; it returned ${got}`,
      );
    }
    calls.forEach((call, i) =>
      isError(results[i]) ? call.fail(results[i]) : call.succeed(results[i]),
    );
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

/**
 * The lanes of one method: calls batch with those to the same instance, and of the same origin
 * where that is asked for.
 */
export class MethodLanes {
  private readonly lanes = new WeakMap<object, Map<Origin | undefined, MethodLane>>();
  private readonly limits: MethodLane['limits'];

  constructor(options: BatchedOptions) {
    this.limits = batchingOf(options);
  }

  laneOf(owner: object, origin: Origin | undefined): MethodLane {
    const ofOwner = this.lanes.get(owner) ?? new Map<Origin | undefined, MethodLane>();
    let lane = ofOwner.get(origin);
    if (!lane) {
      lane = { origin, limits: this.limits };
      this.lanes.set(owner, ofOwner.set(origin, lane));
    }
    return lane;
  }
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
