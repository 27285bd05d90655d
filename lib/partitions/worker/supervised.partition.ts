import type { Batch } from '../../batch/batch.js';
import { messageOf, ServingLoadError, ServingUnavailableError } from '../../errors.js';
import {
  Listeners,
  type PartitionResult,
  NotStartedError,
  type Partition,
  type STEPPED,
  type PartitionStatus,
} from '../partition.js';
import type { Loaded } from './worker-protocol.js';
import type { BatchInfo, BatchListener } from '../batch-function.js';

/** A partition that can end by itself: a thread or a process. */
export interface Worker extends Partition {
  /** Resolves with the reason once it has ended without having been asked to. */
  readonly ended: Promise<Error>;
  readonly loaded?: Loaded;
}

/** How often a worker is started again, and when. */
export interface Supervision {
  /** Milliseconds before the first restart, at most; doubles with each failure in a row. */
  readonly restartDelay: number;
  /** The restarts in a row, none of which has run a batch, after which the circuit opens. */
  readonly maxRestarts: number;
  /** Milliseconds that a restart may take until the worker is loaded and warm. */
  readonly restartTimeout: number;
}

/** Milliseconds between two attempts while the circuit is open. */
const PROBE_INTERVAL = 30_000;

/**
 * Keeps a worker at work: starts another one when it ends, later after each failure in a row. After
 * too many of them the circuit is open: the partition is lost, and a single start now and then
 * tells whether that is still so. A batch that has run forgets all failures. A start that takes too
 * long has failed, where it can be killed; else the partition hangs until it has come to its end.
 */
export class SupervisedPartition implements Partition {
  readonly prefetch: number;
  readonly kill: Partition['kill'];
  unavailable: Error | undefined;
  lost: Error | undefined;
  private readonly listeners = new Listeners();
  private worker: Worker | undefined;
  private warm: ((runner: Partition) => Promise<void>) | undefined;
  private timer: NodeJS.Timeout | undefined;
  private starting: Promise<void> | undefined;
  /** Ends the start that goes on. */
  private startEnd: AbortController | undefined;
  private hangs = false;
  private failures = 0;
  private restarts = 0;
  private closed = false;

  constructor(
    private readonly index: number,
    first: Worker,
    /** Starts a worker, and kills it when the signal aborts, where that harms nobody else. */
    private readonly open: (end: AbortSignal) => Promise<Worker>,
    private readonly supervision: Supervision,
    private readonly random: () => number = Math.random,
  ) {
    this.prefetch = first.prefetch;
    this.kill =
      first.kill &&
      (() => {
        this.startEnd?.abort();
        this.worker?.kill?.();
      });
    this.attach(first);
  }

  get status(): PartitionStatus {
    const { restarts, lost, unavailable, hangs } = this;
    const reason = (lost ?? unavailable)?.message;
    if (reason === undefined) {
      const provider = this.worker?.loaded?.providers?.inUse;
      return { state: 'up', restarts, ...(provider !== undefined && { provider }) };
    }
    return { state: hangs ? 'hung' : lost ? 'lost' : 'restarting', restarts, reason };
  }

  onChange(listener: () => void): void {
    this.listeners.add(listener);
  }

  async run(
    batch: Batch,
    info: BatchInfo,
    listener: BatchListener,
  ): Promise<PartitionResult | typeof STEPPED> {
    const { worker } = this;
    if (!worker) {
      throw (
        this.lost ?? this.unavailable ?? new NotStartedError(`Partition ${this.index} is closed`)
      );
    }
    const result = await worker.run(batch, info, listener);
    this.failures = 0;
    return result;
  }

  async warmUp(warm: (runner: Partition) => Promise<void>): Promise<void> {
    this.warm = warm;
    await warm(this);
  }

  revokePending(): void {
    this.worker?.revokePending?.();
  }

  revoke(): void {
    this.worker?.revoke?.();
  }

  halt(): void {
    this.closed = true;
    clearTimeout(this.timer);
    this.startEnd?.abort();
    this.worker?.halt?.();
  }

  async close(): Promise<void> {
    this.closed = true;
    clearTimeout(this.timer);
    await this.starting;
    await this.worker?.close();
  }

  private attach(worker: Worker): void {
    this.worker = worker;
    this.hangs = false;
    this.unavailable = this.lost = undefined;
    void worker.ended.then((reason) => this.fail(reason));
  }

  private fail(cause: unknown): void {
    this.worker = undefined;
    if (this.closed) {
      return;
    }
    this.failures++;
    this.hangs = false;
    this.lost = undefined;
    const { restartDelay, maxRestarts } = this.supervision;
    if (this.failures > maxRestarts) {
      this.lost = this.lostBy(cause);
      // Nobody waits for it, so it keeps no process alive.
      this.startIn(PROBE_INTERVAL).unref();
    } else {
      this.unavailable = new NotStartedError(
        `Partition ${this.index} is being restarted: ${messageOf(cause)}`,
        {
          cause,
          retryAfter: 1,
        },
      );
      this.startIn(backoff(restartDelay, this.failures, this.random));
    }
    this.listeners.notify();
  }

  private startIn(delay: number): NodeJS.Timeout {
    return (this.timer = setTimeout(() => {
      this.starting = this.start();
    }, delay));
  }

  private async start(): Promise<void> {
    this.restarts++;
    const end = (this.startEnd = new AbortController());
    const timer = setTimeout(() => this.giveUp(end), this.supervision.restartTimeout);
    try {
      const worker = await this.openWarm(end.signal);
      if (this.closed) {
        await worker.close();
        return;
      }
      this.attach(worker);
      this.listeners.notify();
    } catch (error) {
      this.fail((this.kill && end.signal.reason) ?? error);
    } finally {
      clearTimeout(timer);
      this.startEnd = undefined;
    }
  }

  /** The start that goes on has taken too long. */
  private giveUp(end: AbortController): void {
    const { index, kill, closed } = this;
    const { restartTimeout } = this.supervision;
    const facts = `Partition ${index} was not ready ${restartTimeout} ms after its restart`;
    const advice = 'raise restartTimeout if that may take so long';
    if (kill) {
      end.abort(new ServingLoadError(`${facts}; ${advice}`));
    } else if (!closed) {
      this.hangs = true;
      this.lost = new ServingUnavailableError(
        `${facts}, and takes no batch until it is; ${advice}`,
        {
          retryAfter: PROBE_INTERVAL / 1000,
        },
      );
      this.listeners.notify();
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

  private lostBy(cause: unknown): Error {
    const { index, failures } = this;
    const times = failures === 1 ? 'once' : `${failures} times in a row`;
    return new ServingUnavailableError(
      `Partition ${index} has failed ${times}, and is tried again every ${PROBE_INTERVAL / 1000} ` +
        `s: ${messageOf(cause)}`,
      { cause, retryAfter: PROBE_INTERVAL / 1000 },
    );
  }
}

/** The longest time between two restarts, in milliseconds. */
export const LONGEST_BACKOFF = 30_000;

/**
 * Milliseconds before the restart that follows so many failures in a row: anything up to `first`,
 * doubled with each failure, so that what has failed together does not come back together. After
 * "full jitter" in https://aws.amazon.com/blogs/architecture/exponential-backoff-and-jitter/
 */
export function backoff(first: number, failures: number, random: () => number): number {
  return random() * Math.min(LONGEST_BACKOFF, first * 2 ** (failures - 1));
}
