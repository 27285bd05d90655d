import type { BatchOutcome, BatchRecord } from '../batching/batcher.js';
import type { BatchCost } from '../batching/budget.js';
import { type QueuedRequest, sizeOf } from '../batching/queued-request.js';
import type { CloseReason } from '../batching/ready-queue.js';
import type { ServingKind } from '../partitions/handler.partition.js';
import type { PartitionStatus } from '../partitions/partition.js';
import type { SequenceStepRecord } from '../partitions/sequence/sequence-model.js';
import type { Origin } from '../context/call-context.js';

/** How a call runs. */
export type CallMode = 'batched' | 'inline' | 'stream';

/**
 * The stage of a call: before its rows are queued, while they wait, while they run, and while the
 * answer is shaped.
 */
export type CallStage = 'preprocessing' | 'waiting' | 'running' | 'postprocessing';

/**
 * The source of an answer without rows of its own: a `single-flight` call with the same input, or
 * the `cache`.
 */
export type AnsweredBy = 'single-flight' | 'cache';

/** A call has started. Emitted before anything else is done, in the async context of the caller. */
export interface CallStartEvent {
  /** The type of the event. */
  readonly type: 'call:start';
  /** The name of the serving, or `Class.method` for a `@Batched()` method. */
  readonly serving: string;
  /** The label of the version that runs it; undefined for a call to another node. */
  readonly version?: string | undefined;
  /** The number of the call, from 1, among the observed calls of the serving. */
  readonly call: number;
  /** How the call runs. */
  readonly mode: CallMode;
}

/** A call has been answered or has failed. */
export interface CallEndEvent extends Omit<CallStartEvent, 'type'> {
  /** The type of the event. */
  readonly type: 'call:end';
  /** The number of its own rows, as far as they were queued; 0 where something else answered it. */
  readonly rows: number;
  /** The time when it started, in milliseconds since 1970. */
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
   * The stage when it ended; later stages took no time. For a stream, postprocessing is part of
   * `running`.
   */
  readonly stage: CallStage;
  /**
   * The source of the answer, if it is not rows of its own. A call answered from the cache was only
   * preprocessed.
   */
  readonly answeredBy?: AnsweredBy;
  /** Why it failed. */
  readonly error?: unknown;
  /**
   * Whether the error is the reason of its aborted `signal`: the caller has left, and nothing went
   * wrong.
   */
  readonly cancelled?: true;
}

/** A partition was handed a batch. */
export interface BatchStartEvent {
  /** The type of the event. */
  readonly type: 'batch:start';
  /** The name of the serving, or `Class.method` for a `@Batched()` method. */
  readonly serving: string;
  /** The label of the version that it belongs to. */
  readonly version?: string | undefined;
  /** The batch's number, from 1, among the serving's batches. */
  readonly batch: number;
  /** The key of its rows. */
  readonly key: string;
  /** The origin of its calls, in a serving with `queue.separateOrigins`. */
  readonly origin?: Origin | undefined;
  /** The index of the partition. */
  readonly partition: number;
  /** The number of its rows. */
  readonly rows: number;
  /** The number of rows that it had room for. */
  readonly batchSize: number;
  /**
   * The share of its room that is taken: of `batchSize`, or of `batchSize.cost.most` if that is
   * more.
   */
  readonly fill: number;
  /** The cost of the batch, in a serving with `batchSize.cost`. */
  readonly cost?: BatchCost | undefined;
  /**
   * Why the batch closed. `full`: it had no more room. `cost`: no further row fitted into its
   * `batchSize.cost`. `timeout`: its window timed out. `idle`: a
   * partition was free and the serving has no timeout. `flush`: the next request did not fit and
   * must not be split. `drain`: the serving was closing. `retry`: its rows run again after a
   * failure. `inline`: it belongs to one call of `run`. `target`: more rows would miss the
   * `latencyTarget`. `join`: it is a row of a sequence, which joins those that run.
   */
  readonly reason: CloseReason | 'inline';
  /** Milliseconds from its oldest row's arrival until it ran. */
  readonly wait: number;
  /** Expected milliseconds of its run, by its rows; undefined until enough batches have run. */
  readonly expected?: number | undefined;
  /** The rows that were still queued. */
  readonly queued: number;
  /** The observed calls with rows in it, each once. */
  readonly calls: readonly number[];
}

/** A batch has run. */
export interface BatchEndEvent extends Omit<BatchStartEvent, 'type'> {
  /** The type of the event. */
  readonly type: 'batch:end';
  /** Milliseconds that it ran, including the transfer to the worker and back. */
  readonly runTime: number;
  /** The number of padding rows. */
  readonly padding: number;
  /** The number of steps, if the batch function is a generator. */
  readonly steps?: number;
  /** Why it failed. */
  readonly error?: unknown;
  /**
   * Whether it was handed ahead to a busy partition and revoked before it began, since another
   * partition was idle.
   */
  readonly revoked?: true;
  /** The number of its rows that run again. */
  readonly retried?: number;
}

/** The status of a partition has changed. */
export interface PartitionChangeEvent extends PartitionStatus {
  /** The type of the event. */
  readonly type: 'partition:change';
  /** The name of the serving, or `Class.method` for a `@Batched()` method. */
  readonly serving: string;
  /** The label of the version that it belongs to. */
  readonly version?: string | undefined;
  /** Which calls it serves: of `batchedRun` (`batched`), or of `run` (`inline`). */
  readonly kind: ServingKind;
  /** The index of the partition. */
  readonly partition: number;
}

/** A partition has run a step of sequences: the next value of each row that is present. */
export interface SequenceStepEvent extends SequenceStepRecord {
  /** The type of the event. */
  readonly type: 'sequence:step';
  /** The name of the serving. */
  readonly serving: string;
  /** The label of the version that it belongs to. */
  readonly version?: string | undefined;
  /** The key of the rows. */
  readonly key: string;
  /** The index of the partition. */
  readonly partition: number;
}

/** The events of a serving. */
export type ServingEvent =
  | CallStartEvent
  | CallEndEvent
  | BatchStartEvent
  | BatchEndEvent
  | SequenceStepEvent
  | PartitionChangeEvent;

/** The labels of a batch that the batcher does not have. */
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
  { padding = 0, retries, settle: _settle, ...outcome }: BatchOutcome<R>,
): BatchEndEvent {
  const retried = retries && {
    retried: retries.reduce((rows, { parts }) => rows + sizeOf(parts), 0),
  };
  return {
    ...batchStart(record, labels),
    type: 'batch:end',
    runTime,
    padding,
    ...outcome,
    ...retried,
  };
}
