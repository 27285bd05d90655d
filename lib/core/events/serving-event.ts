import type { BatchOutcome, BatchRecord } from '../batching/batcher.js';
import type { BatchCost } from '../batching/fill.js';
import { type QueuedRequest, sizeOf } from '../batching/queued-request.js';
import type { CloseReason } from '../batching/ready-queue.js';
import type { PartitionStatus } from '../partitions/partition.js';
import type { Origin } from '../context/call-context.js';

/** How a call runs. */
export type CallMode = 'batched' | 'inline' | 'stream';

/**
 * A call's stage: before its rows are queued, while they wait, while they run, and while the answer
 * is shaped.
 */
export type CallStage = 'preprocessing' | 'waiting' | 'running' | 'postprocessing';

/**
 * The source of an answer without its own rows: a `single-flight` call with the same input, or the
 * `cache`.
 */
export type AnsweredBy = 'single-flight' | 'cache';

/** A call has started. Emitted before anything else, in the caller's async context. */
export interface CallStartEvent {
  /** The event's type. */
  readonly type: 'call:start';
  /** The serving's name, or `Class.method` for a `@Batched()` method. */
  readonly serving: string;
  /** The label of its version; undefined for a call to another node. */
  readonly version?: string | undefined;
  /** The call's number, from 1, among the serving's observed calls. */
  readonly call: number;
  /** How the call runs. */
  readonly mode: CallMode;
}

/** A call has been answered or has failed. */
export interface CallEndEvent extends Omit<CallStartEvent, 'type'> {
  /** The event's type. */
  readonly type: 'call:end';
  /** Its own rows, as far as they were queued; 0 if something else answered it. */
  readonly rows: number;
  /** Its start in milliseconds since 1970. */
  readonly startedAt: number;
  /** Milliseconds until its rows were queued: `preprocess` and validation. */
  readonly preprocessing: number;
  /** Milliseconds until its first row ran. */
  readonly waiting: number;
  /** Milliseconds until its last row had its output. */
  readonly running: number;
  /** Milliseconds until it was answered. */
  readonly postprocessing: number;
  /**
   * Its stage at the end; later stages took no time. A stream's postprocessing is part of
   * `running`.
   */
  readonly stage: CallStage;
  /**
   * The answer's source, if not its own rows. A call answered from the cache was only preprocessed.
   */
  readonly answeredBy?: AnsweredBy;
  /** Why it failed. */
  readonly error?: unknown;
  /**
   * True if the error is its aborted `signal`'s reason: the caller has left, and nothing went
   * wrong.
   */
  readonly cancelled?: true;
}

/** A partition was handed a batch. */
export interface BatchStartEvent {
  /** The event's type. */
  readonly type: 'batch:start';
  /** The serving's name, or `Class.method` for a `@Batched()` method. */
  readonly serving: string;
  /** Its version's label. */
  readonly version?: string | undefined;
  /** Its number, from 1, among the serving's batches. */
  readonly batch: number;
  /** Its rows' key. */
  readonly key: string;
  /** Its calls' origin, with `queue.separateOrigins`. */
  readonly origin?: Origin | undefined;
  /** Its partition's index. */
  readonly partition: number;
  /** The number of its rows. */
  readonly rows: number;
  /** Rows that it had room for. */
  readonly batchSize: number;
  /** The taken share of its room: of `batchSize`, or of `batchSize.cost.most` if that is more. */
  readonly fill: number;
  /** Its cost, with `batchSize.cost`. */
  readonly cost?: BatchCost | undefined;
  /**
   * Why it closed. `full`: it had no more room. `cost`: no further row suited its `batchSize.cost`.
   * `timeout`: its window timed out. `idle`: a partition was free, and the serving has no timeout.
   * `flush`: the next request did not fit and must not be split. `drain`: the serving was closing.
   * `retry`: its rows run again after a failure. `inline`: it belongs to one `run` call. `target`:
   * more rows would miss the `latencyTarget`. `join`: it is a sequence's row, which joins the
   * running ones.
   */
  readonly reason: CloseReason | 'inline';
  /** Milliseconds from its oldest row's arrival until it ran. */
  readonly wait: number;
  /** Milliseconds that its run was expected to take; undefined until enough batches have run. */
  readonly expected?: number | undefined;
  /** Rows that were still queued. */
  readonly queued: number;
  /** Observed calls with rows in it, each once. */
  readonly calls: readonly number[];
}

/** A batch has run. */
export interface BatchEndEvent extends Omit<BatchStartEvent, 'type'> {
  /** The event's type. */
  readonly type: 'batch:end';
  /** Milliseconds that it ran, including transfer to the worker and back. */
  readonly runTime: number;
  /** Padding rows. */
  readonly padding: number;
  /** Steps, if the batch function is a generator. */
  readonly steps?: number;
  /** Why it failed. */
  readonly error?: unknown;
  /**
   * True if it was sent ahead to a busy partition and revoked before it began, since another one
   * was idle.
   */
  readonly revoked?: true;
  /** Its rows that run again. */
  readonly retried?: number;
}

/** A partition's status has changed. */
export interface PartitionChangeEvent extends PartitionStatus {
  /** The event's type. */
  readonly type: 'partition:change';
  /** The serving's name, or `Class.method` for a `@Batched()` method. */
  readonly serving: string;
  /** Its version's label. */
  readonly version?: string | undefined;
  /** The partition's index. */
  readonly partition: number;
}

/** A serving's events by type. */
export interface ServingEvents {
  readonly 'call:start': CallStartEvent;
  readonly 'call:end': CallEndEvent;
  readonly 'batch:start': BatchStartEvent;
  readonly 'batch:end': BatchEndEvent;
  readonly 'partition:change': PartitionChangeEvent;
}

/** A serving's events. */
export type ServingEvent = ServingEvents[keyof ServingEvents];

export interface BatchLabels {
  readonly serving: string;
  readonly version: string | undefined;
  readonly key: string;
  readonly origin?: Origin | undefined;
  readonly calls: readonly number[];
}

export function batchStart<R extends QueuedRequest>(
  record: BatchRecord<R>,
  labels: BatchLabels,
): BatchStartEvent {
  const { id, partition, rows, batchSize, reason, wait, expected, cost, queued } = record;
  return {
    type: 'batch:start',
    batch: id,
    partition,
    rows,
    batchSize,
    fill: Math.max(rows / batchSize, cost ? cost.padded / cost.most : 0),
    cost,
    reason,
    wait,
    expected,
    queued,
    ...labels,
  };
}

export function batchEnd<R extends QueuedRequest>(
  record: BatchRecord<R>,
  labels: BatchLabels,
  runTime: number,
  { padding = 0, steps, error, revoked, retries }: BatchOutcome<R>,
): BatchEndEvent {
  const retried = retries && {
    retried: retries.reduce((rows, { parts }) => rows + sizeOf(parts), 0),
  };
  return {
    ...batchStart(record, labels),
    type: 'batch:end',
    runTime,
    padding,
    ...(steps !== undefined && { steps }),
    ...(error !== undefined && { error }),
    ...(revoked && { revoked }),
    ...retried,
  };
}
