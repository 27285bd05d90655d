import type { BatchRecord, Request } from '../batching/batcher.js';
import type { CloseReason } from '../batching/waiting-line.js';

/** One batch has run. */
export interface BatchEvent {
  readonly type: 'batch';
  /** The name of the serving, or `Class.method` for a `@Batched()` method. */
  readonly serving: string;
  readonly key: string;
  /** The index of the partition that ran it. */
  readonly partition: number;
  /** The rows in it. */
  readonly rows: number;
  /** The rows that it had room for. */
  readonly batchSize: number;
  /** `rows / batchSize`. */
  readonly fill: number;
  /**
   * Why it closed: it was `full`; its `timeout` passed; `idle`: a serving without timeout found a partition; or the serving
   * was closing and it had to `drain`.
   */
  readonly reason: CloseReason;
  /** Milliseconds from the arrival of its oldest row until it ran. */
  readonly wait: number;
  /** Milliseconds that it ran, the way to its thread and back included. */
  readonly runTime: number;
  /** Why it failed, if it did. */
  readonly error?: unknown;
}

/** The event of a batch that the batcher has recorded. */
export function batchEvent<R extends Request>(serving: string, key: string, { rows, ...record }: BatchRecord<R>): BatchEvent {
  return { type: 'batch', serving, key, rows: rows.length, fill: rows.length / record.batchSize, ...record };
}

/** What a serving tells its observers. */
export type ServingEvent = BatchEvent;
