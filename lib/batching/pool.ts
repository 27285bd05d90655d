import type { BusyUntil, PoolLoad } from './admission.js';

/** A partition as the batcher sees it. */
export interface Target {
  /** The number of full batches it takes ahead while another one runs. */
  readonly prefetch: number;
  /** The number of batches that it runs at once; undefined where it runs one. */
  readonly places?: number | undefined;
  /**
   * The reason why it takes no batch now. It is expected back soon, and queued rows wait for it.
   */
  readonly unavailable?: Error | undefined;
  /**
   * The reason why it takes no batch, now or soon. When all partitions are lost, queued rows fail.
   */
  readonly lost?: Error | undefined;
  /** Revokes the batches that it was handed ahead and has not begun: they end as revoked. */
  revoke?(): void;
  /** Calls the listener whenever one of these has changed. */
  onChange?(listener: () => void): void;
}

/** A partition and its batches. */
export interface TargetLoad {
  readonly partition: number;
  readonly target: Target;
  /** The batches that it was handed and that have not ended; the first one runs. */
  readonly batches: RunningBatch[];
  /** When the first of its batches began. */
  startedAt: number;
}

/** A batch that a partition was handed. */
export interface RunningBatch {
  /** Expected run time in milliseconds. */
  readonly expected: number;
  readonly handedAt: number;
}

/** The partitions of a batcher. Chooses the partition for the next batch. */
export class Pool implements PoolLoad {
  private readonly loads: readonly TargetLoad[];
  /** The partitions without a batch; the one that has been idle longest comes first. */
  private readonly idleLoads: TargetLoad[];
  /** Whether its partitions run several batches at once. */
  private readonly isConcurrent: boolean;
  /** Its partitions take no batch. Those that they have been handed run on. */
  isPaused = false;

  /** @param first the index of the first partition */
  constructor(targets: readonly Target[], first = 0) {
    this.loads = targets.map((target, index) => ({
      partition: first + index,
      target,
      batches: [],
      startedAt: 0,
    }));
    this.idleLoads = [...this.loads];
    this.isConcurrent = targets.some(({ places }) => places !== undefined);
  }

  /**
   * The partition that has been idle longest. If none is idle, a full batch goes to the busy
   * partition with room that is expected to be free first, and any batch to that with the most
   * free places.
   */
  next(batch: 'full' | 'growing', now: number): TargetLoad | undefined {
    if (this.isPaused) {
      return undefined;
    }
    const idle = this.idleLoads.find(isUp);
    if (idle) {
      return idle;
    }
    if (this.isConcurrent) {
      return this.freest();
    }
    if (batch === 'growing') {
      return undefined;
    }
    const open = this.loads.filter(
      (load) => isUp(load) && load.batches.length <= load.target.prefetch,
    );
    return open.reduce<TargetLoad | undefined>(
      (first, load) => (first && this.endOf(first, now) <= this.endOf(load, now) ? first : load),
      undefined,
    );
  }

  /** Whether one partition is idle while another has a batch ahead. */
  get isUneven(): boolean {
    return this.loads.some(isAhead) && this.idle > 0;
  }

  /** Revokes batches that busy partitions have not begun, as many as there are idle partitions. */
  revoke(now: number): void {
    if (this.isUneven) {
      this.loads
        .filter(isAhead)
        .toSorted((a, b) => this.endOf(b, now) - this.endOf(a, now))
        .slice(0, this.idle)
        .forEach(({ target }) => target.revoke!());
    }
  }

  /** Hands a batch to the partition. */
  start(load: TargetLoad, expected: number, now: number): RunningBatch {
    if (load.batches.length === 0) {
      this.idleLoads.splice(this.idleLoads.indexOf(load), 1);
      load.startedAt = now;
    }
    const handed = { expected, handedAt: now };
    load.batches.push(handed);
    return handed;
  }

  /**
   * Removes a batch that has ended or was revoked. Returns the time when it began, or `now` if it
   * did not begin.
   */
  end(load: TargetLoad, handed: RunningBatch, now: number): number {
    const { startedAt, batches } = load;
    const place = batches.indexOf(handed);
    batches.splice(place, 1);
    if (place > 0) {
      return this.isConcurrent ? handed.handedAt : now;
    }
    load.startedAt = now;
    if (batches.length === 0) {
      this.idleLoads.push(load);
    }
    return this.isConcurrent ? handed.handedAt : startedAt;
  }

  /** Expected time when the partition will have run all its batches. */
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

  /** The number of batches that run at once when they are handed out: idle partitions, or places. */
  get idle(): number {
    if (this.isPaused) {
      return 0;
    }
    if (this.isConcurrent) {
      return this.loads.reduce((free, load) => free + freePlaces(load), 0);
    }
    let idle = 0;
    for (const load of this.idleLoads) {
      idle += isUp(load) ? 1 : 0;
    }
    return idle;
  }

  busyUntil(now: number): BusyUntil[] {
    return this.loads.filter(isUp).map((load) => ({
      time: this.endOf(load, now) - now,
      squares: load.batches.reduce((sum, { expected }) => sum + expected ** 2, 0),
    }));
  }

  /** The reason why no partition takes a batch soon, if none does. */
  get lost(): Error | undefined {
    return this.loads.every(({ target }) => target.lost) ? this.loads[0]?.target.lost : undefined;
  }

  /** Whether no batch runs. */
  get isIdle(): boolean {
    return this.idleLoads.length === this.loads.length;
  }

  private freest(): TargetLoad | undefined {
    return this.loads
      .filter((load) => freePlaces(load) > 0)
      .reduce<TargetLoad | undefined>(
        (freest, load) => (freest && freePlaces(freest) >= freePlaces(load) ? freest : load),
        undefined,
      );
  }
}

/** The number of batches that the partition can run beside its own, where it runs several. */
function freePlaces(load: TargetLoad): number {
  const { target, batches } = load;
  return isUp(load) ? Math.max(0, (target.places ?? 0) - batches.length) : 0;
}

/** Whether the partition has a batch ahead that can be revoked. */
function isAhead({ batches, target }: TargetLoad): boolean {
  return batches.length > 1 && target.revoke !== undefined && target.places === undefined;
}

function isUp({ target }: TargetLoad): boolean {
  return !target.unavailable && !target.lost;
}
