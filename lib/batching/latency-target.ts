import type { BatchTimeModel } from './batch-time-model.js';
import { paddedSize, type Limits } from './queued-request.js';
import { LONGEST_OVERRUN, RunTimeSpread } from './run-time-spread.js';

/** A partition that takes batches, and its work until it is free. */
export interface BusyUntil {
  /** Expected milliseconds until it has run its batches. */
  time: number;
  /** The number of these batches. */
  runs: number;
}

/** Batches that run before the rows of a call. */
export interface BatchesAhead {
  readonly batches: number;
  /** Expected milliseconds of all of them. */
  readonly time: number;
}

/** The targets in which the load is measured. A shorter time follows chance, and not the load. */
const TARGETS_MEASURED = 20;

/** The size of a batch may be this multiple of the largest batch that has run. */
const MOST_GROWTH = 2;

/**
 * Keeps calls within a latency: computes how many rows a batch may have, and when a call would be
 * answered. `T(n)` is the expected time of a batch of n rows, `r` the spread of run times, `L` the
 * rows that arrive per millisecond, and `D` the target.
 *
 * - A batch takes the most rows n for which `r T(n) + min(T(n), n / L) <= D`: the run of the batch,
 *   and the time for which its first row waits, until the batch before it has run or n rows have
 *   arrived.
 * - A call is answered after the running batch, the batches ahead and a batch of its own. The
 *   latter counts as full, since it grows until it runs. Overruns of k batches in a row add up to
 *   `(r - 1) T √k`, as those of independent runs do.
 *
 * Sources: Clipper (NSDI 2017) and BentoML's dispatcher choose the size by the target, Nexus (SOSP
 * 2019) has room for two runs in it, and Clockwork (OSDI 2020) refuses what would be late.
 */
export class LatencyTarget {
  /** Milliseconds in which a call is to be answered. */
  readonly milliseconds: number;
  /** The most rows of which a batch is in time. */
  private most = 1;
  private readonly spread = new RunTimeSpread();
  /** The rows of the largest batch that has run, padding included. */
  private largest = 0;
  private load = 0;
  private arrivedAt = -Infinity;

  constructor(
    private readonly limits: Limits,
    milliseconds: number,
    private readonly model: BatchTimeModel,
  ) {
    this.milliseconds = milliseconds;
  }

  /** The number of rows at which a batch is full. */
  get size(): number {
    return Math.min(this.most, this.limits.batchSize);
  }

  /** The factor by which runs may take longer than expected. */
  get overrun(): number {
    return this.spread.value;
  }

  /** Expected milliseconds of a full batch; undefined until enough batches have run. */
  get expected(): number | undefined {
    return this.model.predict(paddedSize(this.limits, this.size));
  }

  /** Notes that rows have arrived, also if they are refused, and adapts the size. */
  arrived(rows: number, now: number, partitions: number): void {
    const memory = TARGETS_MEASURED * this.milliseconds;
    // Rows of one turn of the event loop arrive at one time, and find one size.
    if (now !== this.arrivedAt) {
      this.load *= Math.exp((this.arrivedAt - now) / memory);
      this.arrivedAt = now;
      this.most = this.largestInTime(this.load / Math.max(1, partitions));
    }
    this.load += rows / memory;
  }

  /** Learns the run time of a batch; `rows` includes padding. */
  learn(rows: number, milliseconds: number): void {
    const believed = this.model.predict(rows);
    if (believed !== undefined && believed > 0) {
      this.spread.learn(milliseconds / believed);
    }
    const expected = this.model.estimate(rows);
    // A pause of the machine is no property of the model. A lasting change is learned in steps.
    const longest = expected ? LONGEST_OVERRUN * expected : Infinity;
    this.model.learn(rows, Math.min(milliseconds, longest));
    this.largest = Math.max(this.largest, rows);
  }

  /**
   * Expected milliseconds until a call has run that arrives now, overruns included; undefined until
   * enough batches have run. Adds the batches ahead to the work of the partitions.
   */
  timeToAnswer(partitions: readonly BusyUntil[], ahead: BatchesAhead): number | undefined {
    const own = this.expected;
    if (own === undefined || partitions.length === 0) {
      return undefined;
    }
    const mean = ahead.time / partitions.length;
    if (mean > this.milliseconds) {
      // Far too late: the order of many batches need not be known.
      return mean + own;
    }
    for (let batch = 0; batch < ahead.batches; batch++) {
      const next = firstFree(partitions);
      next.time += ahead.time / ahead.batches;
      next.runs++;
    }
    const { time, runs } = firstFree(partitions);
    return time + own + (this.overrun - 1) * own * Math.sqrt(runs + 1);
  }

  /** The most rows of which a batch is in time; `load` is in rows per millisecond. */
  private largestInTime(load: number): number {
    let size = 1;
    let above = Math.min(this.limits.batchSize, MOST_GROWTH * this.largest) + 1;
    while (above - size > 1) {
      const middle = (size + above) >> 1;
      if (this.isInTime(middle, load)) {
        size = middle;
      } else {
        above = middle;
      }
    }
    return size;
  }

  private isInTime(rows: number, load: number): boolean {
    const time = this.model.estimate(paddedSize(this.limits, rows)) ?? 0;
    return this.overrun * time + Math.min(time, rows / load) <= this.milliseconds;
  }
}

function firstFree(partitions: readonly BusyUntil[]): BusyUntil {
  return partitions.reduce((first, next) => (next.time < first.time ? next : first));
}
