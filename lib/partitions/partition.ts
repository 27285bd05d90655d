import type { Batch } from '../batch/batch.js';
import type { FlatRows } from '../batch/list-rows.js';
import { PartitionLostError, RequestTooLargeError } from '../errors.js';
import type { BatchInfo, BatchListener, BatchResult } from './batch-function.js';

/** The result of a batch: what its function returned, or the same as a FlatContainer. */
export interface PartitionResult extends BatchResult<unknown> {
  /** True when nothing else refers to the memory of the output; else its tensors are copied. */
  readonly own?: boolean;
}

/** Replaces the result when a generator has yielded all of it step by step. */
export const STEPPED = Symbol('stepped');

/**
 * Runs the rows of one batch where its session lives. The steps of a generator go to the listener.
 */
export type RunRows = (
  rows: FlatRows,
  info: BatchInfo,
  listener: BatchListener,
) => Promise<PartitionResult | typeof STEPPED>;

/**
 * The partition was lost before it had begun the batch: another can run it, and nothing runs twice.
 */
export class NotStartedError extends PartitionLostError {}

/** The batch was taken back before it began, since another partition can run it now. */
export class RevokedError extends NotStartedError {}

/**
 * As {@link NotStartedError}, while the batch was on its way to the partition: that may have died
 * of what it received.
 */
export class LostInTransitError extends NotStartedError {}

/**
 * The rows of a batch are too much for one message to the partition. Nothing of it has run, and
 * half of it may fit.
 */
export class TooLargeToSendError extends RequestTooLargeError {}

/**
 * The partition was lost when it had ended the batch, and what that gave with it: whatever it died
 * of, it was not this batch.
 */
export class OutputLostError extends PartitionLostError {}

/**
 * Rows of a batch cannot be handed over to what would run it. Nothing of it has run, so the others
 * can run without them.
 */
export class RejectedRowsError extends Error {
  override readonly name = 'UnfitRows';

  constructor(
    /** What is wrong with each of them, by its place in the batch. */
    readonly faults: ReadonlyMap<number, Error>,
  ) {
    super(`${faults.size} rows of a batch cannot be handed over`);
  }
}

/** One session: runs one batch at a time. */
export interface Partition {
  /**
   * How many full batches may be handed over while one runs: 1 where the transfer hides behind the
   * run, else 0.
   */
  readonly prefetch: number;
  /** Why it takes no batch now; it soon comes back by itself. */
  readonly unavailable?: Error | undefined;
  /** Why it can run nothing: nobody should wait for it, though it may come back. */
  readonly lost?: Error | undefined;
  /** How it is; one that does not say is up until it is lost. */
  readonly status?: PartitionStatus | undefined;
  /** Calls the listener whenever `away`, `lost` or `status` has changed. */
  onChange?(listener: () => void): void;
  /**
   * Rejects when the batch fails; the partition then goes on with the next.
   *
   * @throws UnfitRows when it could run without some of its rows
   */
  run(
    batch: Batch,
    info: BatchInfo,
    listener: BatchListener,
  ): Promise<PartitionResult | typeof STEPPED>;
  /**
   * Has what runs its batches warmed up, now and whenever it has been started again, before it gets
   * a batch of a caller.
   */
  warmUp?(warm: (runner: Partition) => Promise<void>): Promise<void>;
  /**
   * Takes back the batches that were handed ahead: they reject with a NotStartedError, and never
   * run. What runs need not be waited for.
   */
  revokePending?(): void;
  /**
   * Takes back the batches that were handed ahead and have not begun: they reject with a
   * RevokedError, and never run.
   */
  revoke?(): void;
  /** Ends it now, whatever it runs; only where that harms nobody else. */
  kill?(): void;
  /**
   * Ends it as soon as that is safe: a process at once, a thread when its event loop turns. It is
   * not started again.
   */
  halt?(): void;
  /** Ends it after the batches it holds. */
  close(): Promise<void>;
}

/** How one partition of a serving is. */
export interface PartitionStatus {
  /**
   * `up`: it takes batches. `restarting`: its thread or process has ended, and is started again.
   * `hung`: a batch runs longer than `runTimeout`, or its thread loads longer than
   * `restartTimeout`, and nothing else runs until that has ended. `lost`: it has failed too often
   * in a row, and is tried again now and then.
   */
  readonly state: 'up' | 'restarting' | 'hung' | 'lost';
  /** How often it has been started again. */
  readonly restarts: number;
  /** Why it is not up. */
  readonly reason?: string;
  /** The execution provider that runs its model while it is up. */
  readonly provider?: string;
}

export function statusOf({ status, lost }: Partition): PartitionStatus {
  return (
    status ??
    (lost ? { state: 'lost', restarts: 0, reason: lost.message } : { state: 'up', restarts: 0 })
  );
}

/** Those who want to hear of changes. */
export class Listeners {
  private readonly listeners: (() => void)[] = [];

  add(listener: () => void): void {
    this.listeners.push(listener);
  }

  notify(): void {
    this.listeners.forEach((listener) => listener());
  }
}
