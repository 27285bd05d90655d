import type { BatchOutcome, BatchRecord } from '../batching/batcher.js';
import { type QueuedRequest, sizeOf } from '../batching/queued-request.js';
import type { CloseReason } from '../batching/ready-queue.js';
import type { ServingKind } from '../partitions/handler.partition.js';
import type { PartitionStatus } from '../partitions/partition.js';
import type { Origin } from '../context/caller-context.js';

/** How a call runs. */
export type CallMode = 'batched' | 'inline' | 'stream';

/**
 * Where a call stands: what comes before its rows are queued, then their wait, then their run, then
 * what shapes the answer.
 */
export type CallStage = 'preprocessing' | 'waiting' | 'running' | 'postprocessing';

/**
 * What has answered a call in place of rows of its own: the `flight` of a call that asked the same,
 * or a reply from the `cache`.
 */
export type AnsweredBy = 'flight' | 'cache';

/** A call has come; told before anything is done about it, in the async context of its caller. */
export interface CallStartEvent {
  readonly type: 'call:start';
  /** The name of the serving, or `Class.method` for a `@Batched()` method. */
  readonly serving: string;
  /** Counts the calls of the serving that somebody observes, from 1. */
  readonly call: number;
  readonly mode: CallMode;
}

/** A call has been answered, or has failed. */
export interface CallEndEvent extends Omit<CallStartEvent, 'type'> {
  readonly type: 'call:end';
  /** The rows that it brought, as far as it came; none, where something else has answered it. */
  readonly rows: number;
  /** When it came: milliseconds since 1970. */
  readonly startedAt: number;
  /** Milliseconds until its rows were queued: `preprocess`, and the checks at the door. */
  readonly preprocessing: number;
  /** Milliseconds until the first of its rows ran. */
  readonly waiting: number;
  /** Milliseconds until the last of its rows had their output. */
  readonly running: number;
  /** Milliseconds until it was answered. */
  readonly postprocessing: number;
  /**
   * The stage in which it ended; those after it took no time. What a stream postprocesses is part
   * of `running`.
   */
  readonly stage: CallStage;
  /**
   * What has answered it, if not rows of its own. A call that found its reply in the cache has only
   * preprocessed.
   */
  readonly answeredBy?: AnsweredBy;
  /** Why it failed, if it did. */
  readonly error?: unknown;
  /**
   * That error is what its `signal` was aborted with: its caller has left, and nothing went wrong.
   */
  readonly cancelled?: true;
}

/** A partition has got a batch. */
export interface BatchStartEvent {
  readonly type: 'batch:start';
  /** The name of the serving, or `Class.method` for a `@Batched()` method. */
  readonly serving: string;
  /** Counts the batches of the serving, from 1. */
  readonly batch: number;
  readonly key: string;
  /** Where its calls came from, in a serving with `separateOrigins`. */
  readonly origin?: Origin | undefined;
  /** The index of the partition that runs it. */
  readonly partition: number;
  /** The rows in it. */
  readonly rows: number;
  /** The rows that it had room for. */
  readonly batchSize: number;
  /** `rows / batchSize`. */
  readonly fill: number;
  /**
   * Why it closed: it was `full`; its `timeout` passed; `idle`: a serving without timeout found a
   * partition; `flush`: the next request did not fit and must not be split; the serving was closing
   * and it had to `drain`; it is a `retry` of rows whose batch failed; or it never was open, but
   * ran `inline`.
   */
  readonly reason: CloseReason | 'inline';
  /** Milliseconds from the arrival of its oldest row until it ran. */
  readonly wait: number;
  /** The rows that still waited in the queue. */
  readonly queued: number;
  /** The calls that wait for rows in it, each once, as far as somebody observed them start. */
  readonly calls: readonly number[];
}

/** One batch has run. */
export interface BatchEndEvent extends Omit<BatchStartEvent, 'type'> {
  readonly type: 'batch:end';
  /** Milliseconds that it ran, the way to its thread and back included. */
  readonly runTime: number;
  /** The zero rows that were added to it. */
  readonly padding: number;
  /** How often its batch function yielded, if that is a generator. */
  readonly steps?: number;
  /** Why it failed, if it did. */
  readonly error?: unknown;
  /**
   * It was handed ahead to a busy partition and taken back before it began, since another one was
   * idle.
   */
  readonly revoked?: true;
  /** The rows of it that run again, in batches of their own. */
  readonly retried?: number;
}

/** A partition has gone, or has come back. */
export interface PartitionChangeEvent extends PartitionStatus {
  readonly type: 'partition:change';
  readonly serving: string;
  /** `process`: it runs batches of `batchedRun`; `inline`: it is that of `run`. */
  readonly kind: ServingKind;
  /** Its index. */
  readonly partition: number;
}

/** What a serving tells its observers. */
export type ServingEvent =
  CallStartEvent | CallEndEvent | BatchStartEvent | BatchEndEvent | PartitionChangeEvent;

/** What the batcher does not know of a batch. */
export interface BatchLabels {
  readonly serving: string;
  readonly key: string;
  readonly origin?: Origin | undefined;
  readonly calls: readonly number[];
}

export function batchStart<R extends QueuedRequest>(
  record: BatchRecord<R>,
  labels: BatchLabels,
): BatchStartEvent {
  const { id, partition, rows, batchSize, reason, wait, queued } = record;
  return {
    type: 'batch:start',
    batch: id,
    partition,
    rows,
    batchSize,
    fill: rows / batchSize,
    reason,
    wait,
    queued,
    ...labels,
  };
}

export function batchEnd<R extends QueuedRequest>(
  record: BatchRecord<R>,
  labels: BatchLabels,
  runTime: number,
  { padding = 0, retries, ...outcome }: BatchOutcome<R>,
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
