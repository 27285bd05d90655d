import { type Budget, loadOf } from './budget.js';
import { paddedSize, type Limits, type QueuedRequest } from './queued-request.js';
import { RunTimes } from './run-times.js';

/** A batch may be this many times as large as any before. */
const MOST_GROWTH = 2;

/** We measure a load over this many times the calls' time. A shorter window follows chance. */
const PROMISES_MEASURED = 20;

const BATCHES_BETWEEN_TRIALS = 16;

/**
 * Batches between two that are larger than the most efficient size: we may have learned its times
 * while the machine was slow.
 */
const BATCHES_BETWEEN_LARGE_TRIALS = 32;

export interface PlannedBatch {
  rows: number;
  sum: number;
  largest: number;
  /** When all its rows are due. */
  due: number;
  /** The most work with which it is in time. */
  most: number;
  /** Expected run time in milliseconds, once it takes no more rows. */
  time: number;
}

export interface WorkAhead {
  /** A fraction if others' rows share the batches. */
  batches: number;
  /** Sums of expected milliseconds, and of their squares. */
  time: number;
  squares: number;
}

/**
 * The batches that queued rows will form, in arrival order, for lanes with the same limits.
 *
 * Only this class decides how large a batch becomes. A call is admitted with a place in a planned
 * batch, which takes no more work (`most`) than all its calls can bear.
 */
export class PlannedBatches {
  rows = 0;
  private readonly batches: PlannedBatch[] = [];
  /** All planned batches but the open one. */
  private readonly full: WorkAhead = { batches: 0, time: 0, squares: 0 };
  private last = { within: NaN, load: 0, batches: 0, work: 0 };
  /** Batch counts from which on we may try a smaller size, and a larger one. */
  private nextTrial = 0;
  private nextLargeTrial = 0;
  private readonly lasting = new ArrivalRate();
  private readonly recent = new ArrivalRate();

  constructor(
    readonly limits: Limits,
    /** If rows have costs. */
    readonly budget?: Budget,
    readonly times = new RunTimes(budget ? undefined : 0),
  ) {}

  /** The last batch, which may take more rows. */
  get open(): PlannedBatch | undefined {
    return this.batches.at(-1);
  }

  ahead(withOpen: boolean): WorkAhead {
    const { open, full } = this;
    if (!withOpen || !open) {
      return full;
    }
    const time = this.timeAhead(this.workOf(open));
    return { batches: full.batches + 1, time: full.time + time, squares: full.squares + time ** 2 };
  }

  get mostOfNext(): number {
    return this.batches[0]?.most ?? Infinity;
  }

  extend(request: QueuedRequest, offset: number, count: number): void {
    const open = this.open!;
    open.rows += count;
    if (this.budget) {
      const { sum, largest } = loadOf(request, offset, count);
      open.sum += sum;
      open.largest = Math.max(open.largest, largest);
    }
  }

  begin(due: number, most: number): void {
    const { open, full, times } = this;
    if (most > times.best) {
      this.nextLargeTrial = times.count + BATCHES_BETWEEN_LARGE_TRIALS;
    }
    if (open) {
      const work = this.workOf(open);
      open.time = this.timeAhead(work);
      if (open.due < Infinity && open.most === Infinity) {
        open.most = work;
      }
      full.batches++;
      full.time += open.time;
      full.squares += open.time ** 2;
    }
    this.batches.push({ rows: 0, sum: 0, largest: 0, due, most, time: 0 });
  }

  /** Adds rows without a promise of time. */
  add(request: QueuedRequest, rows: number, isAlone = false): void {
    const { size } = request;
    for (let offset = size - rows; offset < size;) {
      const room =
        isAlone && offset === size - rows ? 0 : this.roomIn(this.open, request, offset, size);
      if (room === 0) {
        this.begin(Infinity, Infinity);
      }
      const count = Math.min(size - offset, Math.max(1, room));
      this.extend(request, offset, count);
      offset += count;
    }
  }

  /** How many of the request's rows fit, from `offset` on and before `end`. */
  roomIn(
    batch: PlannedBatch | undefined,
    request: QueuedRequest,
    offset: number,
    end: number,
    most = batch?.most ?? 0,
  ): number {
    if (!batch) {
      return 0;
    }
    const { limits, budget } = this;
    const free = Math.min(end - offset, limits.batchSize - batch.rows);
    if (!budget) {
      return Math.max(0, Math.min(free, Math.floor(most) - batch.rows));
    }
    let { rows, sum, largest } = batch;
    let count = 0;
    for (; count < free; count++) {
      const row = loadOf(request, offset + count, 1);
      sum += row.sum;
      largest = Math.max(largest, row.largest);
      rows++;
      const work = budget.padded ? rows * largest : sum;
      if (rows > 1 && work > Math.min(most, budget.most)) {
        break;
      }
    }
    return count;
  }

  /** Removes rows from the next batches: they run, or are over. */
  remove(rows: number): void {
    const { batches, full } = this;
    for (let left = rows; left > 0 && batches.length > 0;) {
      const next = batches[0]!;
      if (next.rows > left) {
        next.sum *= (next.rows - left) / next.rows;
        next.rows -= left;
        return;
      }
      left -= next.rows;
      batches.shift();
      if (batches.length > 0) {
        full.batches--;
        full.time -= next.time;
        full.squares -= next.time ** 2;
      }
    }
    if (batches.length <= 1) {
      full.batches = full.time = full.squares = 0;
    }
  }

  workOf({ rows, sum, largest }: Pick<PlannedBatch, 'rows' | 'sum' | 'largest'>): number {
    if (!this.budget) {
      return paddedSize(this.limits, rows);
    }
    return this.budget.padded ? rows * largest : sum;
  }

  /** The work of rows that cost 1 each, if rows have costs. */
  workOfRows(rows: number): number {
    return this.workOf({ rows, sum: rows, largest: 1 });
  }

  /** The most that the limits allow. */
  get mostWork(): number {
    return this.budget ? this.budget.most : this.limits.batchSize;
  }

  /** The most work of a planned batch. Only rare trials exceed the most efficient size. */
  get limit(): number {
    const { largest, best, count } = this.times;
    const least = this.budget ? 0 : 1;
    const limit = Math.min(this.mostWork, Math.max(least, MOST_GROWTH * largest));
    return count >= this.nextLargeTrial ? limit : Math.min(limit, best);
  }

  /** Rarely an untried smaller size, which may be more efficient; otherwise Infinity. */
  trial(): number {
    const { untriedBelow = Infinity, count } = this.times;
    if (untriedBelow === Infinity || count < this.nextTrial) {
      return Infinity;
    }
    this.nextTrial = count + BATCHES_BETWEEN_TRIALS;
    return untriedBelow;
  }

  /** The largest work in time, up to the limit. Run times don't decrease with the work. */
  largestWithin(limit: number, isInTime: (work: number) => boolean): number {
    if (this.budget) {
      return isInTime(limit) ? limit : bisect(0, limit, limit / 64, isInTime);
    }
    const isRight = (rows: number): boolean => isInTime(paddedSize(this.limits, rows));
    return isRight(limit) ? limit : Math.floor(bisect(0, limit, 1, (n) => isRight(Math.floor(n))));
  }

  /** Measures arriving work, even if we refuse it. */
  arrived(request: QueuedRequest, now: number, within: number): void {
    const work = this.budget ? loadOf(request, 0, request.size).sum : request.size;
    this.lasting.add(work, now, PROMISES_MEASURED * within);
    this.recent.add(work, now, within);
  }

  /**
   * The size of batches under a lasting load: the most work w that is collected and run in time,
   * `r T(w) + min(T(w), w / L) <= D`. A batch collects while the one before it runs, or until w has
   * arrived.
   */
  lastingWork(within: number, partitions: number): number {
    const { times, last } = this;
    const load = this.lasting.rate / partitions;
    if (last.within !== within || last.load !== load || last.batches !== times.count) {
      const work = this.largestWithin(this.limit, (each) => {
        const time = times.hoped(each);
        return times.overrun * time + Math.min(time, each / load) <= within;
      });
      this.last = { within, load, batches: times.count, work };
    }
    return this.last.work;
  }

  carries(work: number, partitions: number): boolean {
    const load = Math.max(this.lasting.rate, this.recent.rate);
    return work * partitions >= load * this.times.hoped(work);
  }

  workWith(
    { rows, sum, largest }: Pick<PlannedBatch, 'rows' | 'sum' | 'largest'>,
    request: QueuedRequest,
    offset: number,
    count: number,
  ): number {
    if (!this.budget) {
      return this.workOf({ rows: rows + count, sum, largest });
    }
    const more = loadOf(request, offset, count);
    return this.workOf({
      rows: rows + count,
      sum: sum + more.sum,
      largest: Math.max(largest, more.largest),
    });
  }

  /** Expected milliseconds. */
  timeAhead(work: number): number {
    const { times } = this;
    return work > times.largest ? times.hoped(work) : (times.estimate(work) ?? 0);
  }
}

/** Arriving work per millisecond: an average that forgets. */
class ArrivalRate {
  private work = 0;
  private time = 0;
  private arriving = 0;
  private arrivedAt = NaN;

  /** `memory` is in milliseconds. */
  add(work: number, now: number, memory: number): void {
    // One turn's work arrives at one time, and finds one rate.
    if (now !== this.arrivedAt) {
      const passed = Number.isNaN(this.arrivedAt) ? 0 : now - this.arrivedAt;
      const kept = Math.exp(-passed / memory);
      this.work = (this.work + this.arriving) * kept;
      this.time = this.time * kept + memory * (1 - kept);
      this.arriving = 0;
      this.arrivedAt = now;
    }
    this.arriving += work;
  }

  get rate(): number {
    return this.time === 0 ? 0 : this.work / this.time;
  }
}

/** The largest value found that meets the condition, which holds for `low`. */
function bisect(
  low: number,
  high: number,
  precision: number,
  holds: (value: number) => boolean,
): number {
  let [good, bad] = [low, high];
  while (bad - good > precision) {
    const middle = (good + bad) / 2;
    const value = precision === 1 ? Math.floor(middle) : middle;
    if (value === good) {
      break;
    }
    if (holds(value)) {
      good = value;
    } else {
      bad = value;
    }
  }
  return good;
}
