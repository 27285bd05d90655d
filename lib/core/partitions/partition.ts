import type { Batch } from '../batch/batch.js';
import { InvalidOutputError, PartitionLostError, RequestTooLargeError } from '../errors.js';
import type { BatchInfo, BatchListener, BatchResult } from './batch-function.js';

/** A batch's result: what its function returned, or the same as a FlatContainer. */
export interface PartitionResult extends BatchResult<unknown> {
  /** True if nothing else refers to the output's memory; otherwise its tensors are copied. */
  readonly own?: boolean;
}

/** Replaces the result when a generator has yielded all of it step by step. */
export const STEPPED = Symbol('stepped');

/** The partition was lost before the batch began, so another partition can run it. */
export class NotStartedError extends PartitionLostError {}

/** The batch was revoked before it began, because another partition can run it now. */
export class RevokedError extends NotStartedError {}

/**
 * The partition was lost while the batch was in transit to it. The batch may be the reason, if
 * reading it failed.
 */
export class LostInTransitError extends NotStartedError {}

/**
 * A batch's rows are too large for one message to the partition. None of them has run, and
 * half of them may fit.
 */
export class TooLargeToSendError extends RequestTooLargeError {}

/**
 * The batch has run, and its output is too large for one message back. Half of the rows may fit, if
 * they may run again.
 */
export class ReplyTooLargeError extends InvalidOutputError {}

/**
 * The partition's server had no room for the batch. Rows may have run; the partition is there,
 * and takes the next batch after a pause.
 */
export class ServerBusyError extends PartitionLostError {}

/** The partition was lost after the batch had run, and its output with it. */
export class OutputLostError extends PartitionLostError {}

/** Some of a batch's rows can't be sent. None has run, so the others can run without them. */
export class RejectedRowsError extends Error {
  override readonly name = 'RejectedRowsError';

  constructor(
    /** The error of each such row, by its index in the batch. */
    readonly faults: ReadonlyMap<number, Error>,
  ) {
    super(`${faults.size} rows of a batch cannot be sent to their partition`);
  }
}

/** One session, which runs one batch at a time, or as many as it has places. */
export interface Partition {
  /** Batches, of one row each, that it runs at the same time; undefined if it runs one. */
  readonly places?: number | undefined;
  /**
   * Full batches that may be sent ahead while one runs: 1 where that hides the time of transfer,
   * else 0.
   */
  readonly prefetch: number;
  /** The reason why it takes no batch for a short time; it comes back without help. */
  readonly unavailable?: Error | undefined;
  /** The reason why it takes no batch at all: rows do not wait for it, though it may come back. */
  readonly lost?: Error | undefined;
  /** Its state; a partition without one is up until it is lost. */
  readonly status?: PartitionStatus | undefined;
  /** Calls the listener after each change of `unavailable`, `lost` or `status`. */
  onChange?(listener: () => void): void;
  /**
   * Rejects when the batch fails; the partition then runs the next one.
   *
   * @throws RejectedRowsError when the batch could run without some of its rows
   */
  run(
    batch: Batch,
    info: BatchInfo,
    listener: BatchListener,
  ): Promise<PartitionResult | typeof STEPPED>;
  /** Warms the session up, now and after each restart, before it gets batches of callers. */
  warmUp?(warm: (runner: Partition) => Promise<void>): Promise<void>;
  /**
   * Revokes the batches that were sent ahead of a batch that hangs: they reject with a
   * NotStartedError. The batch that hangs no longer keeps the process alive.
   */
  revokePending?(): void;
  /** Revokes the batches that were sent ahead and have not begun, with a RevokedError. */
  revoke?(): void;
  /** Drops the states of sessions that have ended, after the batches that it holds. */
  endSessions?(ids: readonly number[]): void;
  /** Ends the session immediately, even in a run; only if that is safe for the process. */
  kill?: (() => void) | undefined;
  /**
   * Ends the session as soon as that is safe: a process immediately, a thread on its event loop's
   * next turn. It doesn't restart.
   */
  halt?(): void;
  /** Ends the session after the batches that it holds. */
  close(): Promise<void>;
}

/** The state of one partition of a serving. */
export interface PartitionStatus {
  /**
   * `up`: it takes batches. `restarting`: its thread or process has ended, and is started again.
   * `hung`: a batch runs longer than `runTimeout`, or its thread loads longer than
   * `restartTimeout`, and nothing else runs until that has ended. `lost`: it has failed too often
   * in a row, and only an occasional restart is tried.
   */
  readonly state: 'up' | 'restarting' | 'hung' | 'lost';
  /** Restarts. */
  readonly restarts: number;
  /** The reason why it is not up. */
  readonly reason?: string;
  /** The execution provider of its model, while it is up. */
  readonly provider?: string;
}

export function statusOf({ status, lost }: Partition): PartitionStatus {
  return (
    status ??
    (lost ? { state: 'lost', restarts: 0, reason: lost.message } : { state: 'up', restarts: 0 })
  );
}

/** A partition that runs its batches on another one, and forwards all that it doesn't change. */
export abstract class PartitionDecorator implements Partition {
  readonly prefetch: number;
  readonly places: number | undefined;
  readonly kill: Partition['kill'];
  private readonly listeners: (() => void)[] = [];

  constructor(inner: Partition) {
    this.prefetch = inner.prefetch;
    this.places = inner.places;
    this.kill = inner.kill && (() => this.killInner());
  }

  /** The other partition; undefined while there is none. */
  protected abstract readonly inner: Partition | undefined;

  abstract run(
    batch: Batch,
    info: BatchInfo,
    listener: BatchListener,
  ): Promise<PartitionResult | typeof STEPPED>;

  onChange(listener: () => void): void {
    this.listeners.push(listener);
  }

  revokePending(): void {
    this.inner?.revokePending?.();
  }

  revoke(): void {
    this.inner?.revoke?.();
  }

  endSessions(ids: readonly number[]): void {
    this.inner?.endSessions?.(ids);
  }

  halt(): void {
    this.inner?.halt?.();
  }

  async close(): Promise<void> {
    await this.inner?.close();
  }

  protected notify(): void {
    this.listeners.forEach((listener) => listener());
  }

  protected killInner(): void {
    this.inner?.kill?.();
  }
}
