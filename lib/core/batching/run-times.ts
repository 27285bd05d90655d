import type { Budget } from './fill.js';
import type { Limits } from './queued-request.js';

/** We refuse no call before this many batches have run. */
export const BATCHES_TO_BELIEVE = 8;

const LEAST_WEIGHT = 0.1;

/**
 * Shares by which a batch moves all sizes' times towards its own: little, since runs differ by
 * chance, and more if the last few were all clearly slower or faster. Slowness breaks promises, so
 * fewer runs prove it. Equal gains keep chance alone from slowing down sizes that don't run.
 */
const GAIN = 0.1;
const CLEAR_GAIN = 0.3;
const CLEARLY_SLOWER = { by: 1.15, runs: 2 };
const CLEARLY_FASTER = { by: 0.9, runs: 5 };

/** Beyond this factor from its size's expected time, a run shows that the speed has changed. */
const MOST_CHANGE = 1.25;

/**
 * Batches, doubled by each of its runs, after which a size counts as untried: a cold first run must
 * not rule it out.
 */
const BATCHES_UNTIL_RETRY = 64;

/** Batches of other sizes after which a mean is old, and its next batch's weight. */
const BATCHES_UNTIL_OLD = 16;
const WEIGHT_AGAIN = 0.5;

/** Runs after which a size predicts smaller ones. */
const RUNS_TO_TRUST = 3;

/** The best size is the largest with at least this share of the highest efficiency. */
const CLEARLY_LESS = 0.93;

/** Milliseconds of runs between learning, which takes microseconds, as long as a fast function. */
const TIME_BETWEEN = 1;

/** Milliseconds; a clock may show 0, which has no ratio to other times. */
const SHORTEST_RUN = 0.001;

/** A 99th percentile of fewer runs is hardly more than their maximum. */
const RUNS_REMEMBERED = 300;

/** Assumed before any run, with the weight of this many runs. */
const FIRST_SPREAD = 1.5;
const FIRST_RUNS = 16;

/** A longer run is a pause of the machine, which would also have paused a smaller batch. */
const LONGEST_OVERRUN = 3;

const QUANTILE = 0.99;

interface SizeClass {
  /** Its largest work is 2 to this power. */
  readonly level: number;
  work: number;
  time: number;
  runs: number;
  most: number;
  last: number;
}

/**
 * 99th percentile of actual ÷ expected run time. Starts at 1.5, since few runs give too low a
 * value.
 */
export class RunTimeSpread {
  private readonly ratios = new Float64Array(RUNS_REMEMBERED);
  private readonly sorted = new Float64Array(RUNS_REMEMBERED).fill(Infinity);
  private runs = 0;
  /** At least 1. */
  value = FIRST_SPREAD;

  learn(ratio: number): void {
    const place = this.runs % RUNS_REMEMBERED;
    const oldest = this.runs < RUNS_REMEMBERED ? Infinity : this.ratios[place]!;
    const newest = Math.min(ratio, LONGEST_OVERRUN);
    this.ratios[place] = newest;
    replaceIn(this.sorted, oldest, newest);
    const known = Math.min(++this.runs, RUNS_REMEMBERED);
    const measured = this.sorted[Math.ceil(known * QUANTILE) - 1]!;
    const doubt = FIRST_RUNS / (FIRST_RUNS + known);
    this.value = Math.max(1, measured + (FIRST_SPREAD - measured) * doubt);
  }
}

function replaceIn(sorted: Float64Array, before: number, after: number): void {
  const from = firstAtLeast(sorted, before);
  const to = firstAtLeast(sorted, after);
  if (to <= from) {
    sorted.copyWithin(to + 1, to, from);
    sorted[to] = after;
  } else {
    sorted.copyWithin(from, from + 1, to);
    sorted[to - 1] = after;
  }
}

function firstAtLeast(sorted: Float64Array, value: number): number {
  let [low, high] = [0, sorted.length];
  while (low < high) {
    const middle = (low + high) >>> 1;
    if (sorted[middle]! < value) {
      low = middle + 1;
    } else {
      high = middle;
    }
  }
  return low;
}

/**
 * Expected run times by a batch's work: its rows, or their cost.
 *
 * Each size class (powers of two) has a mean, so a size keeps what we learned while others run. If
 * the machine becomes slower, all sizes do. Times are interpolated between the means and never
 * decrease with the work (pool adjacent violators).
 */
export class RunTimes {
  private readonly spread = new RunTimeSpread();
  private readonly classes: SizeClass[] = [];
  /** Monotone, by ascending work. */
  private points: { readonly work: number; readonly time: number }[] = [];
  /** Batches that we learned from, and milliseconds of runs since the last one. */
  private batches = 0;
  private passed = 0;
  /** Actual ÷ expected times, to detect a change and to measure the spread. */
  private readonly latest: number[] = [];
  private readonly neighbours: number[] = [];
  private known: SizeClass[] = [];
  /** Batches with more work are less efficient. */
  best = Infinity;

  /** @param lowest the smallest batch's level */
  constructor(private readonly lowest = -Infinity) {}

  learn(work: number, measured: number): void {
    const milliseconds = Math.max(measured, SHORTEST_RUN);
    const level = levelOf(work);
    const known = this.classOf(level);
    // The previous run decides whether this one counts: by its own length, pauses would count more.
    const isSoon = this.passed < TIME_BETWEEN;
    this.passed = isSoon ? this.passed + milliseconds : milliseconds;
    if (isSoon && known && known.runs >= BATCHES_TO_BELIEVE) {
      return;
    }
    this.batches++;
    const isOld = known !== undefined && this.batches - known.last > BATCHES_UNTIL_OLD;
    const expected = this.estimate(work);
    let time = milliseconds;
    if (known && expected !== undefined && expected > 0) {
      this.spread.learn(this.comparedWithNeighbours(milliseconds / expected));
      // A pause of the machine, or a lasting change, which we learn in steps.
      time = Math.min(milliseconds, LONGEST_OVERRUN * expected);
      const now = expected * this.adaptAll(time / expected, expected);
      if (!isOld) {
        time = Math.min(Math.max(time, now / MOST_CHANGE), now * MOST_CHANGE);
      }
    }
    this.record(level, work, time, isOld ? WEIGHT_AGAIN : LEAST_WEIGHT);
    this.update();
  }

  /** Milliseconds; undefined until enough batches have run. */
  expected(work: number): number | undefined {
    return this.isBelieved ? this.estimate(work) : undefined;
  }

  get isBelieved(): boolean {
    return this.batches >= BATCHES_TO_BELIEVE;
  }

  get overrun(): number {
    return this.spread.value;
  }

  get largest(): number {
    return this.known.at(-1)?.most ?? 0;
  }

  /** Like {@link expected}, from the first batch on. */
  estimate(work: number): number | undefined {
    const { points } = this;
    const first = points[0];
    if (!first) {
      return undefined;
    }
    if (work <= first.work) {
      return first.time;
    }
    let [below, above] = [first, points[1]];
    for (let index = 1; above && above.work < work; above = points[++index]) {
      below = above;
    }
    // Rounding may exceed the time of the next point, and times must not decrease.
    const cap = above?.time ?? Infinity;
    if (!above) {
      // Beyond the last point we keep the slope from a clearly smaller size.
      above = below;
      below = points.findLast((point) => point.work < above!.work / 1.5) ?? { work: 0, time: 0 };
    }
    const slope = (above.time - below.time) / (above.work - below.work);
    return Math.min(cap, below.time + slope * (work - below.work));
  }

  /**
   * Like {@link estimate}, but an untried size is as fast as the one below it, unless a larger one
   * has run several times.
   */
  hoped(work: number): number {
    const level = levelOf(work);
    const expected = this.estimate(work) ?? 0;
    let below: SizeClass | undefined;
    for (const each of this.known) {
      if (each.level === level || (each.level > level && each.runs >= RUNS_TO_TRUST)) {
        return expected;
      }
      below = each.level < level ? each : below;
    }
    return below ? Math.min(expected, this.estimate(below.work)!) : expected;
  }

  /** Smaller batches than have run may be as much faster as they are smaller. */
  least(work: number): number {
    const [first] = this.points;
    return first ? this.estimate(work)! * Math.min(1, work / first.work) : 0;
  }

  get untriedBelow(): number | undefined {
    const top = this.best < Infinity ? levelOf(this.best) : this.known.at(-1)?.level;
    return top === undefined || top <= this.lowest || this.classOf(top - 1)
      ? undefined
      : 2 ** (top - 1);
  }

  get count(): number {
    return this.batches;
  }

  private classOf(level: number): SizeClass | undefined {
    for (const each of this.known) {
      if (each.level === level) {
        return each;
      }
    }
    return undefined;
  }

  /** Uses the median of five runs: a lasting change of speed isn't spread. */
  private comparedWithNeighbours(ratio: number): number {
    const { neighbours } = this;
    remember(neighbours, ratio, 5);
    return neighbours[neighbours.length >> 1]! / medianOf(neighbours);
  }

  /**
   * Returns the factor. A single run may be a pause, so we take the median of three. Small batches
   * weigh little.
   */
  private adaptAll(ratio: number, expected: number): number {
    const { latest, neighbours } = this;
    remember(latest, ratio, CLEARLY_FASTER.runs);
    const isClear =
      latest.slice(-CLEARLY_SLOWER.runs).every((each) => each > CLEARLY_SLOWER.by) ||
      (latest.length === CLEARLY_FASTER.runs && latest.every((each) => each < CLEARLY_FASTER.by));
    const gain = isClear ? CLEAR_GAIN : GAIN;
    const weight = Math.min(1, expected / this.estimate(this.largest)!);
    const change = medianOf(latest.slice(-3)) ** (gain * weight);
    this.classes.forEach((each) => (each.time *= change));
    latest.forEach((each, index) => (latest[index] = each / change));
    neighbours.forEach((each, index) => (neighbours[index] = each / change));
    return change;
  }

  private record(level: number, work: number, time: number, leastWeight: number): void {
    let known = this.classes.find((each) => each.level === level);
    if (!known) {
      known = { level, work, time, runs: 0, most: 0, last: 0 };
      this.classes.push(known);
      this.classes.sort((a, b) => a.level - b.level);
    }
    const weight = Math.max(1 / ++known.runs, leastWeight);
    known.work += weight * (work - known.work);
    known.time += weight * (time - known.time);
    known.most = Math.max(known.most, work);
    known.last = this.batches;
  }

  private isForgotten(each: SizeClass): boolean {
    const { runs, last } = each;
    return runs < BATCHES_TO_BELIEVE && this.batches - last >= BATCHES_UNTIL_RETRY * 2 ** runs;
  }

  private update(): void {
    this.known = this.classes.filter((each) => !this.isForgotten(each));
    const pools: { time: number; weight: number; size: number }[] = [];
    for (const { time, runs } of this.known) {
      const pool = { time, weight: Math.min(runs, 1 / LEAST_WEIGHT), size: 1 };
      for (let last = pools.at(-1); last && last.time >= pool.time; last = pools.at(-1)) {
        pools.pop();
        const weight = last.weight + pool.weight;
        pool.time = (last.time * last.weight + pool.time * pool.weight) / weight;
        pool.weight = weight;
        pool.size += last.size;
      }
      pools.push(pool);
    }
    this.points = [];
    for (const { time, size } of pools) {
      for (let left = size; left > 0; left--) {
        this.points.push({ work: this.known[this.points.length]!.work, time });
      }
    }
    this.best = this.mostEfficient();
  }

  private mostEfficient(): number {
    const { points } = this;
    const most = points.reduce((pace, { work, time }) => Math.max(pace, work / time), 0);
    const index = points.findLastIndex(({ work, time }) => work / time >= most * CLEARLY_LESS);
    return index < 0 || index === points.length - 1 ? Infinity : 2 ** this.known[index]!.level;
  }
}

export class LearnedTimes {
  private readonly all = new Map<Limits, RunTimes>();

  constructor(private readonly budget: Budget | undefined) {}

  of(own: Limits): RunTimes {
    const { like: limits = own } = own;
    let times = this.all.get(limits);
    if (!times) {
      // Without costs, the smallest batch is one row.
      times = new RunTimes(this.budget ? undefined : 0);
      this.all.set(limits, times);
    }
    return times;
  }

  known(limits?: Limits): readonly [Limits, RunTimes] | undefined {
    const own = limits ? ([[limits, this.of(limits)]] as const) : [];
    return [...own, ...this.all].find(([, { largest }]) => largest > 0);
  }
}

function levelOf(work: number): number {
  return Math.ceil(Math.log2(work));
}

function remember(values: number[], value: number, most: number): void {
  if (values.push(value) > most) {
    values.shift();
  }
}

function medianOf(values: readonly number[]): number {
  return values.toSorted(ascending)[values.length >> 1]!;
}

function ascending(a: number, b: number): number {
  return a - b;
}
