import type { CallingBatch } from '../../context/call-cycles.js';
import { countOfRows } from '../../format.js';
import type { Batch } from '../../batch/batch.js';
import { RunTimeoutError } from '../../errors.js';
import {
  type Partition,
  PartitionDecorator,
  partitionRefusal,
  type PartitionResult,
  type PartitionStatus,
  statusOf,
  type STEPPED,
} from '../partition.js';
import {
  type BatchInfo,
  type BatchListener,
  type BatchTerms,
  NO_TERMS,
} from '../batch-function.js';

/** Milliseconds; a later timer shows that its thread was busy. */
const LATE = 5;

/**
 * Limits each batch's time; beyond it, the callers fail immediately. A process is killed and
 * restarts. A native run is ended, and its partition stays. Any other partition, and one whose run
 * does not end, is `hung` until the batch returns, and the late result is dropped. In a sequence the
 * limit is for each step: the time until a row has a value or ends.
 *
 * Time when the application's own thread was busy doesn't count: a turn of the event loop runs
 * timers before it reads results. So a late timer runs again for as long as it was late, and the
 * batch expires only after its turn's input.
 */
export class TimedPartition extends PartitionDecorator {
  /** Running batch first. */
  private readonly runs: TimedRun[] = [];
  private timer: NodeJS.Timeout | undefined;
  private lastLook: NodeJS.Immediate | undefined;
  private hung: Error | undefined;

  constructor(
    private readonly index: number,
    protected readonly inner: Partition,
    /** Milliseconds. */
    private readonly timeout: number,
  ) {
    super(inner);
    inner.onChange?.(() => {
      if (!this.hung) {
        this.notify();
      }
    });
  }

  get unavailable(): Error | undefined {
    return this.inner.unavailable;
  }

  get lost(): Error | undefined {
    return this.hung ?? this.inner.lost;
  }

  get status(): PartitionStatus {
    const status = statusOf(this.inner);
    return this.hung ? { ...status, state: 'hung', reason: this.hung.message } : status;
  }

  async run(
    batch: Batch,
    info: BatchInfo,
    listener: BatchListener,
  ): Promise<PartitionResult | typeof STEPPED> {
    if (this.hung) {
      throw this.hung;
    }
    const run = new TimedRun(batch.size, listener, () => this.stepped());
    this.runs.push(run);
    if (this.runs.length === 1) {
      this.startClock();
    }
    return Promise.race([this.runToEnd(run, batch, info), run.expired]);
  }

  /** Unlimited, because the warm-up may compile the model. */
  async warmUp(warm: (runner: Partition) => Promise<void>): Promise<void> {
    await (this.inner.warmUp ? this.inner.warmUp(warm) : warm(this.inner));
  }

  override halt(): void {
    this.stopClock();
    super.halt();
  }

  private async runToEnd(
    run: TimedRun,
    batch: Batch,
    info: BatchInfo,
  ): Promise<PartitionResult | typeof STEPPED> {
    try {
      return await this.inner.run(batch, info, run);
    } finally {
      this.runEnded(run);
    }
  }

  private runEnded(run: TimedRun): void {
    const place = this.runs.indexOf(run);
    this.runs.splice(place, 1);
    // After a hang, a step's rows end together, except those already revoked.
    const goesOn = this.capacity === undefined ? place > 0 : this.hung && this.runs.length > 0;
    if (goesOn) {
      return;
    }
    this.restartClock();
    if (this.hung) {
      this.hung = undefined;
      this.notify();
    }
  }

  private stepped(): void {
    if (this.capacity !== undefined && !this.hung) {
      this.restartClock();
    }
  }

  private restartClock(): void {
    this.stopClock();
    this.startClock();
  }

  private stopClock(): void {
    clearTimeout(this.timer);
    clearImmediate(this.lastLook);
  }

  /** A batch sent ahead begins when the previous one ends. */
  private startClock(): void {
    const [run] = this.runs;
    if (run) {
      this.expireAfter(this.timeout, run, this.timeout);
    }
  }

  /** @param grace most milliseconds to add for late timers */
  private expireAfter(delay: number, run: TimedRun, grace: number): void {
    const due = performance.now() + delay;
    this.timer = setTimeout(() => {
      const late = Math.min(performance.now() - due, grace);
      if (late > LATE) {
        this.expireAfter(late, run, grace - late);
      } else {
        this.lastLook = setImmediate(() => this.expire(run));
      }
    }, delay);
  }

  private expire(run: TimedRun): void {
    const { index, timeout, capacity } = this;
    const runs = capacity === undefined ? [run] : [...this.runs];
    const [what, plural] =
      capacity === undefined
        ? [`a batch of ${countOfRows(run.rows)}`, 'batches']
        : [`a step of ${countOfRows(runs.length)}`, 'steps'];
    const facts = `Partition ${index} has run ${what} for over ${timeout} ms`;
    const advice = `raise recovery.runTimeout if ${plural} may take so long`;
    const expire = (message: string): void =>
      runs.forEach((each) => each.expire(new RunTimeoutError(message)));
    if (this.kill) {
      expire(`${facts}, and is restarted; ${advice}`);
      this.kill();
      return;
    }
    if (this.terminate && !run.isExpired) {
      expire(`${facts}, and was ended; ${advice}`);
      this.terminate();
      this.expireAfter(timeout, run, timeout);
      return;
    }
    const retryAfter = Math.max(1, Math.ceil(timeout / 1000));
    this.hung = partitionRefusal(`${facts}, and takes no other until that returns`, {
      retryAfter,
    });
    expire(`${facts}; ${advice}`);
    this.revokePending();
    this.notify();
  }
}

/** The compiler demands each member. */
type WholeListener = {
  readonly [Name in keyof Required<BatchListener>]: BatchListener[Name];
};

/** Its listener receives nothing once it has expired. */
class TimedRun implements WholeListener {
  readonly hooks: readonly string[];
  readonly expired: Promise<never>;
  private reject!: (error: Error) => void;
  isExpired = false;

  constructor(
    readonly rows: number,
    private readonly listener: BatchListener,
    private readonly onStep: () => void,
  ) {
    this.hooks = listener.hooks;
    this.expired = new Promise((_, reject) => (this.reject = reject));
  }

  expire(error: Error): void {
    this.isExpired = true;
    this.reject(error);
  }

  get callsIfFull(): number | undefined {
    return this.listener.callsIfFull;
  }

  get hasCallers(): boolean | undefined {
    return this.listener.hasCallers;
  }

  caller(): CallingBatch | undefined {
    return this.listener.caller?.();
  }

  hook(name: string, value: unknown, own?: boolean): void {
    if (!this.isExpired) {
      this.listener.hook(name, value, own);
    }
  }

  step(output: unknown, metadata: unknown): void {
    this.onStep();
    if (!this.isExpired) {
      this.listener.step(output, metadata);
    }
  }

  isWaiting(row: number): boolean {
    return !this.isExpired && this.listener.isWaiting(row);
  }

  async room(): Promise<void> {
    await this.listener.room?.();
  }

  terms(): BatchTerms {
    return this.listener.terms?.() ?? NO_TERMS;
  }

  onLeft(callback: () => void): void {
    this.listener.onLeft?.(callback);
  }
}
