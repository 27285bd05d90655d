import type { PoolLoad } from './admission.js';

/** What the batcher must know of a partition. */
export interface Target {
  /** How many full batches it takes ahead while another one runs. */
  readonly prefetch: number;
  /** Why it takes no batch now; it is expected back, and what waits waits for it. */
  readonly unavailable?: Error | undefined;
  /**
   * Why it takes no batch now, nor soon: when all partitions are lost, what waits fails with it.
   */
  readonly lost?: Error | undefined;
  /** Takes back the batches that it was handed ahead and has not begun: they end as taken back. */
  revoke?(): void;
  /** Has the listener called whenever one of these has changed. */
  onChange?(listener: () => void): void;
}

/** A partition and what it has to do. */
export interface TargetLoad {
  readonly partition: number;
  readonly target: Target;
  /** The batches that were handed to it and have not finished, the one that runs first. */
  readonly batches: RunningBatch[];
  /** When it began with the first of them. */
  startedAt: number;
}

/** A batch that a partition has. */
export interface RunningBatch {
  /** How many milliseconds it takes, as far as is known. */
  readonly expected: number;
}

/** The partitions of a batcher, and which of them is to get the next batch. */
export class Pool implements PoolLoad {
  private readonly loads: readonly TargetLoad[];
  /** Those that run nothing, the one that has been idle longest first. */
  private readonly idleLoads: TargetLoad[];

  constructor(targets: readonly Target[]) {
    this.loads = targets.map((target, partition) => ({
      partition,
      target,
      batches: [],
      startedAt: 0,
    }));
    this.idleLoads = [...this.loads];
  }

  /**
   * The partition that has been idle longest; for a full batch, if none is idle, the busy one with
   * room for it that is expected to be free first.
   */
  next(batch: 'full' | 'growing', now: number): TargetLoad | undefined {
    const idle = this.idleLoads.find(isUp);
    if (idle || batch === 'growing') {
      return idle;
    }
    const open = this.loads.filter(
      (load) => isUp(load) && load.batches.length <= load.target.prefetch,
    );
    return open.reduce<TargetLoad | undefined>(
      (first, load) => (first && this.endOf(first, now) <= this.endOf(load, now) ? first : load),
      undefined,
    );
  }

  /** Whether a partition waits for a batch while another has one ahead. */
  get isUneven(): boolean {
    return this.loads.some(isAhead) && this.idle > 0;
  }

  /**
   * Has busy partitions give back what they have not begun, as many as there are idle ones to run
   * it.
   */
  revoke(now: number): void {
    if (this.isUneven) {
      this.loads
        .filter(isAhead)
        .toSorted((a, b) => this.endOf(b, now) - this.endOf(a, now))
        .slice(0, this.idle)
        .forEach(({ target }) => target.revoke!());
    }
  }

  /** The partition gets a batch, which will take so many milliseconds. */
  start(load: TargetLoad, expected: number, now: number): RunningBatch {
    if (load.batches.length === 0) {
      this.idleLoads.splice(this.idleLoads.indexOf(load), 1);
      load.startedAt = now;
    }
    const handed = { expected };
    load.batches.push(handed);
    return handed;
  }

  /** The batch has ended, or was taken back; gives when it began, or now if it did not. */
  end(load: TargetLoad, handed: RunningBatch, now: number): number {
    const { startedAt, batches } = load;
    const place = batches.indexOf(handed);
    batches.splice(place, 1);
    if (place > 0) {
      return now;
    }
    load.startedAt = now;
    if (batches.length === 0) {
      this.idleLoads.push(load);
    }
    return startedAt;
  }

  /** When the partition will have finished what it has, as far as is known. */
  endOf({ batches, startedAt }: TargetLoad, now: number): number {
    const [first, ...others] = batches;
    return first
      ? others.reduce(
          (end, { expected }) => end + expected,
          Math.max(now, startedAt + first.expected),
        )
      : now;
  }

  get partitions(): number {
    return this.loads.filter(isUp).length;
  }

  /** The partitions that wait for a batch. */
  get idle(): number {
    let idle = 0;
    for (const load of this.idleLoads) {
      idle += isUp(load) ? 1 : 0;
    }
    return idle;
  }

  runningUntil(now: number): number {
    return this.loads.reduce((time, load) => time + this.endOf(load, now) - now, 0);
  }

  /** Why no partition will take a batch soon. */
  get lost(): Error | undefined {
    return this.loads.every(({ target }) => target.lost) ? this.loads[0]?.target.lost : undefined;
  }

  /** Nothing runs. */
  get isIdle(): boolean {
    return this.idleLoads.length === this.loads.length;
  }
}

/** Whether it has a batch ahead that it can give back. */
function isAhead({ batches, target }: TargetLoad): boolean {
  return batches.length > 1 && target.revoke !== undefined;
}

function isUp({ target }: TargetLoad): boolean {
  return !target.unavailable && !target.lost;
}
