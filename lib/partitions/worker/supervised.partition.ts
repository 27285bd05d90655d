import type { Batch } from '../../batch/batch.js';
import { messageOf, ServingLoadError, ServingUnavailableError } from '../../errors.js';
import {
  NotStartedError,
  type Partition,
  PartitionDecorator,
  type PartitionResult,
  type PartitionStatus,
  type STEPPED,
} from '../partition.js';
import type { Loaded } from './worker-protocol.js';
import type { BatchInfo, BatchListener } from '../batch-function.js';

/** A partition that can end without being closed: a thread or a process. */
export interface Worker extends Partition {
  /**
   * Resolves with the reason once it has ended without being closed, before its batches reject.
   */
  readonly ended: Promise<Error>;
  readonly loaded?: Loaded;
}

/** How often a worker is restarted, and when. */
export interface Supervision {
  /** Limit of milliseconds before the first restart; doubles with each failure in a row. */
  readonly restartDelay: number;
  /** Restarts in a row without a finished batch, after which the circuit opens. */
  readonly maxRestarts: number;
  /** Milliseconds until a restarted worker must be loaded and warm. */
  readonly restartTimeout: number;
}

/** Milliseconds between two restarts while the circuit is open. */
const PROBE_INTERVAL = 30_000;

/**
 * Restarts its worker when that ends, with a longer delay after each failure in a row. After too
 * many failures the circuit opens: the partition is lost, and one restart every
 * {@link PROBE_INTERVAL} probes it. A finished batch resets the failures. A restart that takes too
 * long fails where the worker can be killed; else the partition is hung until the restart ends.
 */
export class SupervisedPartition extends PartitionDecorator {
  lost: Error | undefined;
  /** The reason why it has no worker for a short time. */
  private down: Error | undefined;
  protected inner: Worker | undefined;
  private warm: ((runner: Partition) => Promise<void>) | undefined;
  private timer: NodeJS.Timeout | undefined;
  private restarting: Promise<void> | undefined;
  /** Ends the restart in progress. */
  private restartEnd: AbortController | undefined;
  private isHung = false;
  private failures = 0;
  private restarts = 0;
  private closed = false;

  constructor(
    private readonly index: number,
    first: Worker,
    /** Starts a worker, and kills it when the signal aborts, where that is safe. */
    private readonly open: (end: AbortSignal) => Promise<Worker>,
    private readonly supervision: Supervision,
    private readonly random: () => number = Math.random,
  ) {
    super(first);
    this.attach(first);
  }

  /** Also while its worker is up, and pauses. */
  get unavailable(): Error | undefined {
    return this.down ?? this.inner?.unavailable;
  }

  get status(): PartitionStatus {
    const { restarts, lost, down, isHung } = this;
    const reason = (lost ?? down)?.message;
    if (reason === undefined) {
      const provider = this.inner?.loaded?.providers?.inUse;
      return { state: 'up', restarts, ...(provider !== undefined && { provider }) };
    }
    return { state: isHung ? 'hung' : lost ? 'lost' : 'restarting', restarts, reason };
  }

  run(
    batch: Batch,
    info: BatchInfo,
    listener: BatchListener,
  ): Promise<PartitionResult | typeof STEPPED> {
    const { inner, index, lost, down } = this;
    if (!inner) {
      return Promise.reject(lost ?? down ?? new NotStartedError(`Partition ${index} is closed`));
    }
    const running = inner.run(batch, info, listener);
    // Beside the way of the result, which gets there a step earlier.
    running.then(this.succeeded, () => {});
    return running;
  }

  async warmUp(warm: (runner: Partition) => Promise<void>): Promise<void> {
    this.warm = warm;
    // A worker that has ended is warmed up when it is started again.
    if (this.inner) {
      await warm(this);
    }
  }

  override halt(): void {
    this.closed = true;
    clearTimeout(this.timer);
    this.restartEnd?.abort();
    super.halt();
  }

  override async close(): Promise<void> {
    this.closed = true;
    clearTimeout(this.timer);
    await this.restarting;
    await super.close();
  }

  protected override killInner(): void {
    this.restartEnd?.abort();
    super.killInner();
  }

  private readonly succeeded = (): void => {
    this.failures = 0;
  };

  private attach(worker: Worker): void {
    this.inner = worker;
    this.isHung = false;
    this.down = this.lost = undefined;
    worker.onChange?.(() => this.notify());
    void worker.ended.then((reason) => this.workerFailed(reason));
  }

  private workerFailed(cause: unknown): void {
    this.inner = undefined;
    if (this.closed) {
      return;
    }
    this.failures++;
    this.isHung = false;
    this.lost = undefined;
    const { restartDelay, maxRestarts } = this.supervision;
    if (this.failures > maxRestarts) {
      this.lost = this.circuitError(cause);
      // No call waits for the probe, so it keeps no process alive.
      this.restartIn(PROBE_INTERVAL).unref();
    } else {
      this.down = new NotStartedError(
        `Partition ${this.index} is being restarted: ${messageOf(cause)}`,
        { cause, retryAfter: 1 },
      );
      this.restartIn(backoff(restartDelay, this.failures, this.random));
    }
    this.notify();
  }

  private restartIn(delay: number): NodeJS.Timeout {
    return (this.timer = setTimeout(() => {
      this.restarting = this.restart();
    }, delay));
  }

  private async restart(): Promise<void> {
    this.restarts++;
    const end = (this.restartEnd = new AbortController());
    const timer = setTimeout(() => this.restartTimedOut(end), this.supervision.restartTimeout);
    try {
      const worker = await this.openWarm(end.signal);
      if (this.closed) {
        await worker.close();
        return;
      }
      this.attach(worker);
      this.notify();
    } catch (error) {
      this.workerFailed((this.kill && end.signal.reason) ?? error);
    } finally {
      clearTimeout(timer);
      this.restartEnd = undefined;
    }
  }

  private restartTimedOut(end: AbortController): void {
    const { index, kill, closed } = this;
    const { restartTimeout } = this.supervision;
    const facts = `Partition ${index} was not ready ${restartTimeout} ms after its restart`;
    const advice = 'raise recovery.restartTimeout if that may take so long';
    if (kill) {
      end.abort(new ServingLoadError(`${facts}; ${advice}`));
    } else if (!closed) {
      this.isHung = true;
      this.lost = new ServingUnavailableError(
        `${facts}, and takes no batch until it is; ${advice}`,
        { retryAfter: PROBE_INTERVAL / 1000 },
      );
      this.notify();
    }
  }

  private async openWarm(end: AbortSignal): Promise<Worker> {
    const worker = await this.open(end);
    try {
      await (this.closed ? undefined : this.warm?.(worker));
    } catch (error) {
      await worker.close();
      throw error;
    }
    return worker;
  }

  private circuitError(cause: unknown): Error {
    const { index, failures } = this;
    const times = failures === 1 ? 'once' : `${failures} times in a row`;
    return new ServingUnavailableError(
      `Partition ${index} has failed ${times}, and is tried again every ${PROBE_INTERVAL / 1000} ` +
        `s: ${messageOf(cause)}`,
      { cause, retryAfter: PROBE_INTERVAL / 1000 },
    );
  }
}

/** Limit of milliseconds between two restarts. */
export const LONGEST_BACKOFF = 30_000;

/**
 * Milliseconds before the restart after this number of failures in a row: a random part of `first`,
 * doubled with each failure, so that partitions that failed together do not restart together. After
 * "full jitter" in https://aws.amazon.com/blogs/architecture/exponential-backoff-and-jitter/
 */
export function backoff(first: number, failures: number, random: () => number): number {
  return random() * Math.min(LONGEST_BACKOFF, first * 2 ** (failures - 1));
}
