import type { Work } from './admission.js';

/** What the batcher must know of a partition. */
export interface Slot {
  /** How many full batches it takes ahead while another one runs. */
  readonly prefetch: number;
  /** Why it takes no batch now; it is expected back, and what waits waits for it. */
  readonly away?: Error | undefined;
  /** Why it takes no batch now, nor soon: when all partitions are lost, what waits fails with it. */
  readonly lost?: Error | undefined;
  /** Has the listener called whenever one of these has changed. */
  onChange?(listener: () => void): void;
}

/** A partition and what it has to do. */
export interface Load {
  readonly partition: number;
  readonly slot: Slot;
  /** How many milliseconds each of the batches takes that were handed to it and have not finished, as far as is known. */
  readonly expected: number[];
  /** When it began with the first of them. */
  startedAt: number;
}

/** The partitions of a batcher, and which of them is to get the next batch. */
export class Pool implements Work {
  private readonly loads: readonly Load[];
  /** Those that run nothing, the one that has been idle longest first. */
  private readonly idle: Load[];

  constructor(slots: readonly Slot[]) {
    this.loads = slots.map((slot, partition) => ({ partition, slot, expected: [], startedAt: 0 }));
    this.idle = [...this.loads];
  }

  /** The partition that has been idle longest; for a full batch also a busy one that takes it ahead. */
  next(batch: 'full' | 'growing'): Load | undefined {
    const idle = this.idle.find(isUp);
    if (idle || batch === 'growing') {
      return idle;
    }
    return this.loads.find((load) => isUp(load) && load.expected.length <= load.slot.prefetch);
  }

  /** The partition gets a batch, which will take so many milliseconds. */
  start(load: Load, expected: number, now: number): void {
    if (load.expected.length === 0) {
      this.idle.splice(this.idle.indexOf(load), 1);
      load.startedAt = now;
    }
    load.expected.push(expected);
  }

  /** The batch that it got first has ended; gives when that began. */
  end(load: Load, now: number): number {
    const { startedAt } = load;
    load.startedAt = now;
    load.expected.shift();
    if (load.expected.length === 0) {
      this.idle.push(load);
    }
    return startedAt;
  }

  /** When the partition will have finished what it has, as far as is known. */
  endOf({ expected, startedAt }: Load, now: number): number {
    const [first, ...others] = expected;
    return first === undefined ? now : others.reduce((end, time) => end + time, Math.max(now, startedAt + first));
  }

  get partitions(): number {
    return this.loads.filter(isUp).length;
  }

  get isIdle(): boolean {
    return this.idle.some(isUp);
  }

  runningUntil(now: number): number {
    return this.loads.reduce((time, load) => time + this.endOf(load, now) - now, 0);
  }

  /** Why no partition will take a batch soon. */
  get lost(): Error | undefined {
    return this.loads.every(({ slot }) => slot.lost) ? this.loads[0]?.slot.lost : undefined;
  }

  /** Nothing runs. */
  get isQuiet(): boolean {
    return this.idle.length === this.loads.length;
  }
}

function isUp({ slot }: Load): boolean {
  return !slot.away && !slot.lost;
}
