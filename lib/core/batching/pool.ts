import type { BusyUntil, PoolLoad } from './admission.js';
import type { QueuedRequest } from './queued-request.js';

export interface Target {
  /** Full batches that it takes ahead while another one runs. */
  readonly prefetch: number;
  /**
   * Batches that it runs at the same time, each of one row.
   *
   * @default one batch of any size
   */
  readonly capacity?: number | undefined;
  readonly unavailable?: Error | undefined;
  /** When all partitions are lost, queued rows fail. */
  readonly lost?: Error | undefined;
  revoke?(): void;
  onChange?(listener: () => void): void;
}

export interface TargetLoad {
  readonly partition: number;
  readonly target: Target;
  /** Oldest first: as many as its capacity run, the others wait. */
  readonly batches: RunningBatch[];
  startedAt: number;
}

export interface RunningBatch {
  /** Milliseconds. */
  readonly expected: number;
  readonly handedAt: number;
}

export class Pool implements PoolLoad {
  private readonly loads: readonly TargetLoad[];
  /** Longest idle first. */
  private readonly open: TargetLoad[];
  private batches = 0;
  isPaused = false;

  constructor(targets: readonly Target[], first = 0) {
    this.loads = targets.map((target, index) => ({
      partition: first + index,
      target,
      batches: [],
      startedAt: 0,
    }));
    this.open = [...this.loads];
  }

  /**
   * The partition with the most free places, then the longest idle. A full batch goes ahead to the
   * busy partition expected to be free first.
   */
  next(batch: 'full' | 'growing', now: number): TargetLoad | undefined {
    if (this.isPaused) {
      return undefined;
    }
    let freest: TargetLoad | undefined;
    for (const load of this.open) {
      if (isUp(load) && (!freest || freePlaces(load) > freePlaces(freest))) {
        freest = load;
      }
    }
    if (freest || batch === 'growing') {
      return freest;
    }
    const ahead = this.loads.filter(
      (load) => isUp(load) && freePlaces(load) + load.target.prefetch > 0,
    );
    return ahead.reduce<TargetLoad | undefined>(
      (first, load) => (first && this.endOf(first, now) <= this.endOf(load, now) ? first : load),
      undefined,
    );
  }

  get isUneven(): boolean {
    return this.loads.some(isAhead) && this.idle > 0;
  }

  /** Revokes one batch that hasn't begun for each idle partition. */
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
    const handed = { expected, handedAt: now };
    this.batches++;
    if (load.batches.push(handed) === 1) {
      load.startedAt = now;
    }
    if (freePlaces(load) === 0) {
      this.open.splice(this.open.indexOf(load), 1);
    }
    return handed;
  }

  /** Removes an ended or revoked batch. Returns when it began, or `now`. */
  end(load: TargetLoad, handed: RunningBatch, now: number): number {
    const { startedAt, batches, target } = load;
    const place = batches.indexOf(handed);
    batches.splice(place, 1);
    this.batches--;
    if (freePlaces(load) === 1) {
      this.open.push(load);
    }
    if (target.capacity !== undefined) {
      return handed.handedAt;
    }
    if (place > 0) {
      return now;
    }
    load.startedAt = now;
    return startedAt;
  }

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

  get idle(): number {
    let idle = 0;
    for (const load of this.isPaused ? [] : this.open) {
      idle += isUp(load) ? freePlaces(load) : 0;
    }
    return idle;
  }

  busyUntil(now: number): BusyUntil[] {
    return this.loads.filter(isUp).map((load) => ({
      time: this.endOf(load, now) - now,
      squares: load.batches.reduce((sum, { expected }) => sum + expected ** 2, 0),
    }));
  }

  /** True if no partition, up or not, has a free place. */
  get isFull(): boolean {
    return this.open.length === 0;
  }

  get lost(): Error | undefined {
    for (const { target } of this.loads) {
      if (!target.lost) {
        return undefined;
      }
    }
    return this.loads[0]?.target.lost;
  }

  get isIdle(): boolean {
    return this.batches === 0;
  }
}

function freePlaces({ target, batches }: TargetLoad): number {
  return (target.capacity ?? 1) - batches.length;
}

function isAhead(load: TargetLoad): boolean {
  return freePlaces(load) < 0 && load.target.revoke !== undefined;
}

function isUp({ target }: TargetLoad): boolean {
  return !target.unavailable && !target.lost;
}

const NEWEST = 0.1;
/** Percentile of the delay, and an arrival's step towards it, in intervals. */
const MOST_ROWS = 0.8;
const STEP = 0.04;
/** Multiple of the delay. */
const PATIENCE = 2;
/** Milliseconds, since timers are no finer, and a multiple of the wait. */
const LEAST_GAIN = { time: 1, ratio: 1.3 };
/**
 * Batches that don't wait after a useless wait. They grow if over a quarter of the waits are
 * useless: these calls don't all come back.
 */
const PAUSES = { least: 2, growth: 2, most: 1024, decay: 0.8 };
/** Calls with less time than this many intervals don't wait. */
const INTERVALS_OF_PATIENT = 8;

interface LoneBatch {
  /** Rows that it answered. */
  readonly rows: number;
  readonly waiting: number;
  readonly batchSize: number;
  /** Milliseconds saved by one batch. */
  readonly gainOf: (first: number, others: number) => number;
}

/**
 * Lets a lone partition wait for the rows that it has just answered to come back.
 *
 * Callers who call again after each answer split into two groups, whose batches take turns, though
 * one batch of all is often hardly slower. So if most rows arrive within half of the interval
 * between two batches' ends, the partition waits for as many rows as it answered, if that saves
 * more time than it takes. Arrivals independent of ends come at any time, so it never waits for
 * them.
 */
export class ReturningRows {
  private endedAt: number | undefined;
  private interval = 0;
  private delay = 0;
  private missing = 0;
  private timer: NodeJS.Timeout | undefined;
  private pause = 0;
  private nextPause = PAUSES.least;
  private hurriedAt = -Infinity;

  constructor(private readonly onGivenUp: () => void) {}

  get areAwaited(): boolean {
    return this.missing > 0;
  }

  arrive({ size, deadline }: QueuedRequest, now: number): void {
    const { interval, delay, endedAt } = this;
    if (interval > 0) {
      // At the percentile, the steps up and down cancel out.
      const step = now - endedAt! > delay ? MOST_ROWS : MOST_ROWS - 1;
      this.delay = Math.min(interval, Math.max(0, delay + step * STEP * interval));
    }
    const isHurried = deadline - now < INTERVALS_OF_PATIENT * interval;
    if (isHurried) {
      this.hurriedAt = now;
    }
    if (this.missing > 0) {
      this.missing = isHurried ? 0 : this.missing - size;
      if (this.missing <= 0) {
        clearTimeout(this.timer);
        this.nextPause = Math.max(PAUSES.least, this.nextPause * PAUSES.decay);
      }
    }
  }

  end(now: number): void {
    if (this.endedAt === undefined) {
      this.endedAt = now;
      return;
    }
    const passed = now - this.endedAt;
    if (this.interval === 0) {
      this.interval = this.delay = passed;
    }
    this.interval += NEWEST * (passed - this.interval);
    this.endedAt = now;
    this.pause = Math.max(0, this.pause - 1);
  }

  waitAfter({ rows, waiting, batchSize, gainOf }: LoneBatch): void {
    const { interval, delay, endedAt, hurriedAt } = this;
    const all = waiting + rows;
    const isHurried = endedAt! - hurriedAt < INTERVALS_OF_PATIENT * interval;
    if (all > batchSize || delay > interval / 2 || isHurried || this.pause > 0) {
      return;
    }
    // Without waiting rows, the first that comes back begins a batch.
    const first = Math.max(waiting, 1);
    const least = Math.max(LEAST_GAIN.time, (LEAST_GAIN.ratio * delay * all) / rows);
    if (gainOf(first, all - first) > least) {
      this.missing = rows;
      clearTimeout(this.timer);
      this.timer = setTimeout(() => this.giveUp(), PATIENCE * delay);
    }
  }

  close(): void {
    this.missing = 0;
    clearTimeout(this.timer);
  }

  private giveUp(): void {
    this.missing = 0;
    this.pause = this.nextPause;
    this.nextPause = Math.min(PAUSES.most, this.nextPause * PAUSES.growth);
    this.onGivenUp();
  }
}
