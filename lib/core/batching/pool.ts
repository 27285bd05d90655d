import type { BusyUntil, PoolLoad } from './admission.js';

/** A partition as the batcher sees it. */
export interface Target {
  /** Full batches that it takes ahead while another one runs. */
  readonly prefetch: number;
  /** Batches that it runs at the same time; undefined if it runs one. */
  readonly places?: number | undefined;
  /** Why it takes no batch now. It is expected back soon, and queued rows wait for it. */
  readonly unavailable?: Error | undefined;
  /** Why it takes no batch, now or soon. When all partitions are lost, queued rows fail. */
  readonly lost?: Error | undefined;
  /** Revokes batches that it hasn't begun: they end as revoked. */
  revoke?(): void;
  /** Calls the listener whenever one of these has changed. */
  onChange?(listener: () => void): void;
}

/** A partition and its batches. */
export interface TargetLoad {
  readonly partition: number;
  readonly target: Target;
  /** Batches that it was handed; the first one runs. */
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

/** Chooses the partition for the next batch. */
export class Pool implements PoolLoad {
  private readonly loads: readonly TargetLoad[];
  /** Partitions without a batch, the longest idle first. */
  private readonly idleLoads: TargetLoad[];
  /** True if its partitions run several batches at the same time. */
  private readonly isConcurrent: boolean;
  /** Its partitions take no further batch. */
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
   * The longest idle partition. If all are busy, a full batch goes to the one with room that we
   * expect to be free first; among partitions with places, any batch goes to the emptiest.
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

  /** True if one partition is idle while another has a batch ahead. */
  get isUneven(): boolean {
    return this.loads.some(isAhead) && this.idle > 0;
  }

  /** Revokes as many batches that haven't begun as there are idle partitions. */
  revoke(now: number): void {
    if (this.isUneven) {
      this.loads
        .filter(isAhead)
        .toSorted((a, b) => this.endOf(b, now) - this.endOf(a, now))
        .slice(0, this.idle)
        .forEach(({ target }) => target.revoke!());
    }
  }

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
   * Removes a batch that has ended or was revoked. Returns when it began, or `now` if it didn't.
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

  /** When we expect the partition to have run all its batches. */
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

  /** Batches that would start immediately: idle partitions, or free places. */
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

  /** Why no partition will take a batch soon; undefined if one will. */
  get lost(): Error | undefined {
    for (const { target } of this.loads) {
      if (!target.lost) {
        return undefined;
      }
    }
    return this.loads[0]?.target.lost;
  }

  /** True if no batch runs. */
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

/** Further batches that the partition can run at the same time. */
function freePlaces(load: TargetLoad): number {
  const { target, batches } = load;
  return isUp(load) ? Math.max(0, (target.places ?? 0) - batches.length) : 0;
}

/** True if the partition has a batch ahead that we can revoke. */
function isAhead({ batches, target }: TargetLoad): boolean {
  return batches.length > 1 && target.revoke !== undefined && target.places === undefined;
}

function isUp({ target }: TargetLoad): boolean {
  return !target.unavailable && !target.lost;
}
