import type { Batch } from '../../batch/batch.js';
import { RunTimeoutError, ServingUnavailableError } from '../../errors.js';
import {
  Listeners,
  type PartitionResult,
  type Partition,
  type STEPPED,
  type PartitionStatus,
  statusOf,
} from '../partition.js';
import type { BatchInfo, BatchListener } from '../batch-function.js';

/**
 * Gives every batch of a partition so much time from when it begins. One that takes longer fails
 * its callers at once: a process is killed, to be started again; what cannot be killed without harm
 * is fenced: it gets no batch until that one has returned, whose result nobody gets.
 */
export class TimedPartition implements Partition {
  readonly prefetch: number;
  readonly kill: Partition['kill'];
  private readonly listeners = new Listeners();
  /** The batch that runs, and behind it those that were handed ahead. */
  private readonly runs: TimedRun[] = [];
  private timer: NodeJS.Timeout | undefined;
  private hung: Error | undefined;

  constructor(
    private readonly index: number,
    private readonly partition: Partition,
    /** Milliseconds. */
    private readonly timeout: number,
  ) {
    this.prefetch = partition.prefetch;
    this.kill = partition.kill && (() => partition.kill!());
    partition.onChange?.(() => {
      if (!this.hung) {
        this.listeners.notify();
      }
    });
  }

  get unavailable(): Error | undefined {
    return this.partition.unavailable;
  }

  get lost(): Error | undefined {
    return this.hung ?? this.partition.lost;
  }

  get status(): PartitionStatus {
    const status = statusOf(this.partition);
    return this.hung ? { ...status, state: 'hung', reason: this.hung.message } : status;
  }

  onChange(listener: () => void): void {
    this.listeners.add(listener);
  }

  async run(
    batch: Batch,
    info: BatchInfo,
    listener: BatchListener,
  ): Promise<PartitionResult | typeof STEPPED> {
    if (this.hung) {
      throw this.hung;
    }
    const run = new TimedRun(batch.size, listener);
    this.runs.push(run);
    if (this.runs.length === 1) {
      this.startClock();
    }
    return Promise.race([this.runToEnd(run, batch, info), run.overdue]);
  }

  /** What the warm-up compiles may take its time. */
  async warmUp(warm: (runner: Partition) => Promise<void>): Promise<void> {
    await (this.partition.warmUp ? this.partition.warmUp(warm) : warm(this.partition));
  }

  revokePending(): void {
    this.partition.revokePending?.();
  }

  revoke(): void {
    this.partition.revoke?.();
  }

  halt(): void {
    clearTimeout(this.timer);
    this.partition.halt?.();
  }

  close(): Promise<void> {
    return this.partition.close();
  }

  private async runToEnd(
    run: TimedRun,
    batch: Batch,
    info: BatchInfo,
  ): Promise<PartitionResult | typeof STEPPED> {
    try {
      return await this.partition.run(batch, info, run);
    } finally {
      this.ended(run);
    }
  }

  private ended(run: TimedRun): void {
    const place = this.runs.indexOf(run);
    this.runs.splice(place, 1);
    if (place > 0) {
      return;
    }
    clearTimeout(this.timer);
    this.startClock();
    if (this.hung) {
      this.hung = undefined;
      this.listeners.notify();
    }
  }

  /** The next batch begins as the one before it ends. */
  private startClock(): void {
    const [run] = this.runs;
    if (run) {
      this.timer = setTimeout(() => this.giveUp(run), this.timeout);
    }
  }

  private giveUp(run: TimedRun): void {
    const { index, timeout } = this;
    const facts = `Partition ${index} has run a batch of ${run.rows} rows for over ${timeout} ms`;
    if (this.kill) {
      run.expire(
        new RunTimeoutError(
          `${facts}, and is restarted; raise runTimeout if batches may take so long`,
        ),
      );
      this.kill();
      return;
    }
    const retryAfter = Math.max(1, Math.ceil(timeout / 1000));
    this.hung = new ServingUnavailableError(`${facts}, and takes no other until that returns`, {
      retryAfter,
    });
    run.expire(new RunTimeoutError(`${facts}; raise runTimeout if batches may take so long`));
    this.revokePending();
    this.listeners.notify();
  }
}

/** One batch, of which nothing is heard any more once it is overdue. */
class TimedRun implements BatchListener {
  readonly hooks: readonly string[];
  /** Rejects when it has taken too long. */
  readonly overdue: Promise<never>;
  private reject!: (error: Error) => void;
  private isOverdue = false;

  constructor(
    readonly rows: number,
    private readonly listener: BatchListener,
  ) {
    this.hooks = listener.hooks;
    this.overdue = new Promise((_, reject) => (this.reject = reject));
  }

  expire(error: Error): void {
    this.isOverdue = true;
    this.reject(error);
  }

  hook(name: string, value: unknown, own?: boolean): void {
    if (!this.isOverdue) {
      this.listener.hook(name, value, own);
    }
  }

  step(output: unknown, metadata: unknown): void {
    if (!this.isOverdue) {
      this.listener.step(output, metadata);
    }
  }

  isWaiting(row: number): boolean {
    return !this.isOverdue && this.listener.isWaiting(row);
  }
}
