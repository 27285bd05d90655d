import { countOfRows } from '../format.js';
import type { Batch } from '../batch/batch.js';
import {
  InvalidOutputError,
  isA,
  PartitionLostError,
  RequestTooLargeError,
  ServingUnavailableError,
} from '../errors.js';
import type { BatchInfo, BatchListener, BatchResult } from './batch-function.js';

export interface PartitionResult extends BatchResult<unknown> {
  /** True if nothing else refers to the output's memory; otherwise its tensors are copied. */
  readonly own?: boolean;
}

/** Replaces a result yielded step by step. */
export const STEPPED = Symbol('stepped');

/** Hook that callers don't get. */
export const REPORT = '\0report';

/** Another partition can run the batch. */
export class NotStartedError extends PartitionLostError {}

const refusals = new WeakSet<Error>();

/** The error of a partition that takes no batches. */
export function partitionRefusal(
  ...[message, options]: ConstructorParameters<typeof ServingUnavailableError>
): ServingUnavailableError {
  const error = new ServingUnavailableError(message, options);
  refusals.add(error);
  return error;
}

export function isPartitionRefusal(error: unknown): error is ServingUnavailableError {
  return isA(error, ServingUnavailableError) && refusals.has(error);
}

/** Another partition can run the batch now. */
export class RevokedError extends NotStartedError {}

/** Reading the batch may be the reason. */
export class LostInTransitError extends NotStartedError {}

/** No row has run, and half may fit. */
export class TooLargeToSendError extends RequestTooLargeError {}

/** Half may fit, if rows may run again. */
export class ReplyTooLargeError extends InvalidOutputError {}

/** Rows may have run; after a pause, the partition takes batches again. */
export class ServerBusyError extends PartitionLostError {}

/** The batch has run. */
export class OutputLostError extends PartitionLostError {}

/** No row has run, so the others can run without them. */
export class RejectedRowsError extends Error {
  override readonly name = 'RejectedRowsError';

  constructor(
    /** Keyed by row. */
    readonly faults: ReadonlyMap<number, Error>,
  ) {
    super(`${countOfRows(faults.size)} of a batch cannot be sent to the partition`);
  }
}

/** One session, which runs one batch at a time, or batches continuously. */
export interface Partition {
  /**
   * Rows that it batches continuously: each is a batch, which joins those that run. Undefined if it
   * runs one batch.
   */
  readonly capacity?: number | undefined;
  /** Event type of its {@link REPORT} hook. */
  readonly reports?: string | undefined;
  /** Full batches to send ahead while one runs: 1 if that hides the transfer, 0 otherwise. */
  readonly prefetch: number;
  /** Reason it takes no batch for a short time. */
  readonly unavailable?: Error | undefined;
  /** Reason it takes no batch at all: rows don't wait, though it may come back. */
  readonly lost?: Error | undefined;
  /** Defaults to up until it is lost. */
  readonly status?: PartitionStatus | undefined;
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
  /** Warms up before callers' batches, now and after each restart. */
  warmUp?(warm: (runner: Partition) => Promise<void>): Promise<void>;
  /**
   * Revokes batches sent ahead of one that hangs, with a NotStartedError. The hanging one no longer
   * keeps the process alive.
   */
  revokePending?(): void;
  /** Revokes batches that have not begun, with a RevokedError. */
  revoke?(): void;
  /** Waits for the batches that it holds. */
  forget?(ids: readonly number[]): void;
  /** Ends the running batch, which then rejects; the session stays. */
  readonly terminate?: (() => void) | undefined;
  /** Ends the session even in a run; only if that is safe for the process. */
  kill?: (() => void) | undefined;
  /** Ends the session for good: a process immediately, a thread on its event loop's next turn. */
  halt?(): void;
  /** Ends the session after its batches. */
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
  /** Reason it is not up. */
  readonly reason?: string;
  /** Its model's execution provider, while up. */
  readonly provider?: string;
}

export function statusOf({ status, lost }: Partition): PartitionStatus {
  return (
    status ??
    (lost ? { state: 'lost', restarts: 0, reason: lost.message } : { state: 'up', restarts: 0 })
  );
}

/** Forwards what it doesn't change. */
export abstract class PartitionDecorator implements Partition {
  readonly prefetch: number;
  readonly capacity: number | undefined;
  readonly reports: string | undefined;
  readonly kill: Partition['kill'];
  readonly terminate: Partition['terminate'];
  private readonly listeners: (() => void)[] = [];

  constructor(inner: Partition) {
    this.prefetch = inner.prefetch;
    this.capacity = inner.capacity;
    this.reports = inner.reports;
    this.kill = inner.kill && (() => this.killInner());
    this.terminate = inner.terminate && (() => this.inner?.terminate?.());
  }

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
