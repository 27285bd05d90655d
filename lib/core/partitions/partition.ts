import { countOfRows } from '../format.js';
import type { Batch } from '../batch/batch.js';
import { InvalidOutputError, PartitionLostError, RequestTooLargeError } from '../errors.js';
import type { BatchInfo, BatchListener, BatchResult } from './batch-function.js';

/** What a batch's function returned, or the same as a FlatContainer. */
export interface PartitionResult extends BatchResult<unknown> {
  /** True if nothing else refers to the output's memory; otherwise its tensors are copied. */
  readonly own?: boolean;
}

/** Replaces a result that a generator has yielded step by step. */
export const STEPPED = Symbol('stepped');

/** The hook of a partition's reports, which callers don't get. */
export const REPORT = '\0report';

/** The partition was lost before the batch began, so another partition can run it. */
export class NotStartedError extends PartitionLostError {}

/** The batch was revoked before it began, because another partition can run it now. */
export class RevokedError extends NotStartedError {}

/** Lost while the batch was in transit. Reading it may be the reason. */
export class LostInTransitError extends NotStartedError {}

/** The rows are too large for one message. None has run, and half may fit. */
export class TooLargeToSendError extends RequestTooLargeError {}

/**
 * The batch has run, but its output is too large for one message. Half may fit, if rows may run
 * again.
 */
export class ReplyTooLargeError extends InvalidOutputError {}

/**
 * The partition's server had no room. Rows may have run; after a pause, the partition takes batches
 * again.
 */
export class ServerBusyError extends PartitionLostError {}

/** The partition was lost after the batch had run, and its output with it. */
export class OutputLostError extends PartitionLostError {}

/** Some rows can't be sent. None has run, so the others can run without them. */
export class RejectedRowsError extends Error {
  override readonly name = 'RejectedRowsError';

  constructor(
    /** Each such row's error, by its index in the batch. */
    readonly faults: ReadonlyMap<number, Error>,
  ) {
    super(`${countOfRows(faults.size)} of a batch cannot be sent to the partition`);
  }
}

/** One session, which runs one batch at a time, or batches continuously. */
export interface Partition {
  /**
   * Rows that it batches continuously: each is a batch by itself, which joins those that run.
   * Undefined if it runs one batch.
   */
  readonly capacity?: number | undefined;
  /** The type of the events that it reports to {@link REPORT}. */
  readonly reports?: string | undefined;
  /** Full batches to send ahead while one runs: 1 if that hides the transfer, 0 otherwise. */
  readonly prefetch: number;
  /** Why it takes no batch for a short time. */
  readonly unavailable?: Error | undefined;
  /** Why it takes no batch at all: rows don't wait, though it may come back. */
  readonly lost?: Error | undefined;
  /** Without one, it is up until it is lost. */
  readonly status?: PartitionStatus | undefined;
  /** Calls the listener after each change of `unavailable`, `lost` or `status`. */
  onChange?(listener: () => void): void;
  /**
   * Rejects when the batch fails; the partition then runs the next one.
   *
   * @throws RejectedRowsError when the batch could run without some rows
   */
  run(
    batch: Batch,
    info: BatchInfo,
    listener: BatchListener,
  ): Promise<PartitionResult | typeof STEPPED>;
  /** Warms the session up before callers' batches, now and after each restart. */
  warmUp?(warm: (runner: Partition) => Promise<void>): Promise<void>;
  /**
   * Revokes batches sent ahead of one that hangs, with a NotStartedError. The hanging one no longer
   * keeps the process alive.
   */
  revokePending?(): void;
  /** Revokes batches sent ahead that have not begun, with a RevokedError. */
  revoke?(): void;
  /** Drops these states after the batches that it holds. */
  forget?(ids: readonly number[]): void;
  /** Ends the session immediately, even in a run; only if that is safe for the process. */
  kill?: (() => void) | undefined;
  /**
   * Ends the session as soon as that is safe: a process immediately, a thread on its event loop's
   * next turn. No restart follows.
   */
  halt?(): void;
  /** Ends the session after the batches that it holds. */
  close(): Promise<void>;
}

/** One partition's state. */
export interface PartitionStatus {
  /**
   * `up`: it takes batches. `restarting`: its thread or process ended and starts again. `hung`: a
   * batch exceeds `runTimeout`, or a thread's load exceeds `restartTimeout`, and nothing else runs
   * until that ends. `lost`: it failed too often in a row; only occasional restarts are tried.
   */
  readonly state: 'up' | 'restarting' | 'hung' | 'lost';
  /** Restarts. */
  readonly restarts: number;
  /** Why it is not up. */
  readonly reason?: string;
  /** Its model's execution provider, while it is up. */
  readonly provider?: string;
}

export function statusOf({ status, lost }: Partition): PartitionStatus {
  return (
    status ??
    (lost ? { state: 'lost', restarts: 0, reason: lost.message } : { state: 'up', restarts: 0 })
  );
}

/** Runs its batches on another partition, and forwards what it doesn't change. */
export abstract class PartitionDecorator implements Partition {
  readonly prefetch: number;
  readonly capacity: number | undefined;
  readonly reports: string | undefined;
  readonly kill: Partition['kill'];
  private readonly listeners: (() => void)[] = [];

  constructor(inner: Partition) {
    this.prefetch = inner.prefetch;
    this.capacity = inner.capacity;
    this.reports = inner.reports;
    this.kill = inner.kill && (() => this.killInner());
  }

  /** Undefined while there is none. */
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

  forget(ids: readonly number[]): void {
    this.inner?.forget?.(ids);
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
