import type { Batch } from '../../batch/batch.js';
import { messageOf, ServingLoadError } from '../../errors.js';
import { countOf } from '../../format.js';
import {
  NotStartedError,
  type Partition,
  PartitionDecorator,
  partitionRefusal,
  type PartitionResult,
  type PartitionStatus,
  type STEPPED,
} from '../partition.js';
import type { Loaded, SessionProviders, WorkerHooks, WorkerTask } from './worker-protocol.js';
import type { BatchInfo, BatchListener } from '../batch-function.js';
import type { ModelSignature } from '../model/model-signature.js';
import { type Isolation, WorkerPartition } from './worker.partition.js';

export interface Worker extends Partition {
  /** Resolves when it ends without being closed, before its batches reject. */
  readonly ended: Promise<Error>;
  readonly loaded?: Loaded;
}

export interface Supervision {
  /** Milliseconds; doubles with each failure in a row. */
  readonly restartDelay: number;
  /** Restarts in a row, without a finished batch, until the circuit opens. */
  readonly maxRestarts: number;
  /** Milliseconds to load and warm up. */
  readonly restartTimeout: number;
}

/** Milliseconds between restarts while the circuit is open. */
const PROBE_INTERVAL = 30_000;

/**
 * Restarts its worker, with a longer delay after each failure in a row. After too many, the circuit
 * opens: the partition is lost, and a restart every {@link PROBE_INTERVAL} probes it. A finished
 * batch resets the failures. A restart that takes too long fails if the worker can be killed;
 * otherwise the partition is hung until it ends.
 */
export class SupervisedPartition extends PartitionDecorator {
  lost: Error | undefined;
  private down: Error | undefined;
  protected inner: Worker | undefined;
  private warm: ((runner: Partition) => Promise<void>) | undefined;
  private timer: NodeJS.Timeout | undefined;
  private restarting: Promise<void> | undefined;
  private restartEnd: AbortController | undefined;
  private isHung = false;
  private failures = 0;
  private restarts = 0;
  private closed = false;

  constructor(
    private readonly index: number,
    first: Worker,
    /** @param end kills the worker, if that is safe */
    private readonly open: (end: AbortSignal) => Promise<Worker>,
    private readonly supervision: Supervision,
    private readonly random: () => number = Math.random,
  ) {
    super(first);
    this.attach(first);
  }

  /** Also set while its worker is up but pauses. */
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
    // Not awaited: the result must not wait a microtask for this.
    running.then(this.succeeded, () => {});
    return running;
  }

  async warmUp(warm: (runner: Partition) => Promise<void>): Promise<void> {
    this.warm = warm;
    // An ended worker warms up at its restart.
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
      // The probe must not keep the process alive.
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
      this.lost = partitionRefusal(`${facts}, and takes no batch until it is; ${advice}`, {
        retryAfter: PROBE_INTERVAL / 1000,
      });
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
    return partitionRefusal(
      `Partition ${index} has failed ${times}, and is tried again every ${PROBE_INTERVAL / 1000} ` +
        `s: ${messageOf(cause)}`,
      { cause, retryAfter: PROBE_INTERVAL / 1000 },
    );
  }
}

/** Milliseconds. */
export const LONGEST_BACKOFF = 30_000;

/**
 * Milliseconds: a random part of `first`, doubled for each failure in a row, so that partitions
 * don't restart together ("full jitter" in
 * https://aws.amazon.com/blogs/architecture/exponential-backoff-and-jitter/).
 */
export function backoff(first: number, failures: number, random: () => number): number {
  return random() * Math.min(LONGEST_BACKOFF, first * 2 ** (failures - 1));
}

interface OpenedWorkers {
  readonly partitions: readonly SupervisedPartition[];
  readonly where: string;
  readonly signature: ModelSignature | undefined;
  readonly providers: readonly (SessionProviders | undefined)[];
}

/** Ends all if one fails to load. */
export async function openWorkers(
  tasks: readonly WorkerTask[],
  isolation: Isolation,
  supervision: Supervision,
  end?: AbortSignal,
  hooks?: WorkerHooks,
): Promise<OpenedWorkers> {
  // `end` may also abort after loading; loaded workers end in another way.
  const halt = new AbortController();
  const abort = (): void => halt.abort();
  end?.addEventListener('abort', abort);
  const openings = await Promise.allSettled(
    tasks.map((task) => WorkerPartition.open(task, isolation, halt.signal, hooks)),
  );
  end?.removeEventListener('abort', abort);
  const failed = openings.find((opening) => opening.status === 'rejected');
  const workers = openings.flatMap((opening) =>
    opening.status === 'fulfilled' ? [opening.value] : [],
  );
  if (failed) {
    await Promise.all(workers.map((worker) => worker.close()));
    throw failed.reason;
  }
  const partitions = workers.map((worker, index) => {
    const open = (signal: AbortSignal) =>
      WorkerPartition.open(tasks[index]!, isolation, signal, hooks);
    return new SupervisedPartition(index, worker, open, supervision);
  });
  return {
    partitions,
    where: countOf(partitions.length, isolation),
    signature: workers[0]?.loaded.signature,
    providers: workers.map(({ loaded }) => loaded.providers),
  };
}
