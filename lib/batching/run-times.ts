import { LONGEST_OVERRUN, RunTimeSpread } from './run-time-spread.js';

/** Batches to learn from before calls are refused by what was learned. */
export const BATCHES_TO_BELIEVE = 8;

/** Weight of the newest batch in the mean of its size class, once the class is known. */
const LEAST_WEIGHT = 0.1;

/**
 * How far a batch moves the times of all sizes towards its own: little, since runs differ by chance,
 * and more if all of the last few were clearly slower or faster. Slowness breaks promises and is
 * believed after two runs, and speed after five. Both move them alike: with unequal gains, chance
 * would make sizes that do not run slower and slower.
 */
const GAIN = 0.1;
const CLEAR_GAIN = 0.3;
const CLEARLY_SLOWER = { by: 1.15, runs: 2 };
const CLEARLY_FASTER = { by: 0.9, runs: 5 };

/** The factor by which a run may differ from the mean of its size. The rest is a change of speed. */
const MOST_CHANGE = 1.25;

/**
 * Batches until a size class that has run once counts as untried again, doubled by each further
 * run: a cold first run must not rule a size out.
 */
const BATCHES_UNTIL_RETRY = 64;

/** After so many batches of other sizes a mean is old. The next batch of its size has this weight. */
const BATCHES_UNTIL_OLD = 16;
const WEIGHT_AGAIN = 0.5;

/** The runs of a size after which smaller sizes are judged by it. */
const RUNS_TO_TRUST = 3;

/** A size is the best if larger ones carry less work per millisecond, by more than this. */
const CLEARLY_LESS = 0.93;

/**
 * Milliseconds of runs between two batches that are learned from. To learn costs a few microseconds,
 * which is much for a function that takes no longer.
 */
const TIME_BETWEEN = 1;

/** The shortest run in milliseconds. A clock may show none, and 0 has no ratio to other times. */
const SHORTEST_RUN = 0.001;

/** The batches whose work lies between two powers of two. */
interface SizeClass {
  /** The largest work of the class: 2 to this power. */
  readonly level: number;
  /** Means of the work and of the time. */
  work: number;
  time: number;
  runs: number;
  /** The largest work that has run. */
  most: number;
  /** The number of its last batch. */
  last: number;
}

/**
 * Expected run times of batches by their work: the number of rows, or their cost where rows have
 * one.
 *
 * It remembers a mean for each size class (powers of two). So a size keeps what was learned of it
 * while other sizes run. A machine that becomes slower makes all sizes slower, also those that do
 * not run. Between the means, times are interpolated, and they never decrease with the work
 * (pool adjacent violators).
 *
 * A size class that has not run is not known to be slow: {@link hoped} assumes that it takes no
 * longer than the next smaller one that has.
 */
export class RunTimes {
  private readonly spread = new RunTimeSpread();
  private readonly classes: SizeClass[] = [];
  /** The means by ascending work, made monotone. */
  private points: { readonly work: number; readonly time: number }[] = [];
  /** The batches that it has learned from, and the milliseconds of those since. */
  private batches = 0;
  private passed = 0;
  /** The latest run times, relative to what is expected now: to see a change, and the spread. */
  private readonly latest: number[] = [];
  private readonly neighbours: number[] = [];
  private known: SizeClass[] = [];
  /** The work above which batches are less efficient. */
  best = Infinity;

  /** The work of the smallest batch there is, if that is known. */
  constructor(private readonly lowest = -Infinity) {}

  /** Learns from a batch that has run. */
  learn(work: number, measured: number): void {
    const milliseconds = Math.max(measured, SHORTEST_RUN);
    const level = levelOf(work);
    const known = this.known.find((each) => each.level === level);
    // What this batch took must not decide whether it counts, but only whether the next one does.
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
      // A pause of the machine is no property of the model. A lasting change is learned in steps.
      time = Math.min(milliseconds, LONGEST_OVERRUN * expected);
      const now = expected * this.adaptAll(time / expected, expected);
      if (!isOld) {
        time = Math.min(Math.max(time, now / MOST_CHANGE), now * MOST_CHANGE);
      }
    }
    this.record(level, work, time, isOld ? WEIGHT_AGAIN : LEAST_WEIGHT);
    this.update();
  }

  /** Expected milliseconds, or undefined until enough batches have run. */
  expected(work: number): number | undefined {
    return this.isBelieved ? this.estimate(work) : undefined;
  }

  /** Whether enough batches have run to refuse calls. */
  get isBelieved(): boolean {
    return this.batches >= BATCHES_TO_BELIEVE;
  }

  /** The factor by which runs may take longer than expected. */
  get overrun(): number {
    return this.spread.value;
  }

  /** The largest work that has run. */
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
    if (!above) {
      // Beyond the last point, the slope is that from a clearly smaller size.
      above = below;
      below = points.findLast((point) => point.work < above!.work / 1.5) ?? { work: 0, time: 0 };
    }
    const slope = (above.time - below.time) / (above.work - below.work);
    return below.time + slope * (work - below.work);
  }

  /**
   * Like {@link estimate}, but a size class that was not tried is as fast as the one below it. Between
   * sizes that have run several times, times are interpolated.
   */
  hoped(work: number): number {
    const level = levelOf(work);
    const expected = this.estimate(work) ?? 0;
    if (
      this.isTried(level) ||
      this.known.some((each) => each.level > level && each.runs >= RUNS_TO_TRUST)
    ) {
      return expected;
    }
    const below = this.known.findLast((each) => each.level < level);
    return below ? Math.min(expected, this.estimate(below.work)!) : expected;
  }

  /** The largest work of the size class below the most efficient one, if that was not tried. */
  get untriedBelow(): number | undefined {
    const top = this.best < Infinity ? levelOf(this.best) : this.known.at(-1)?.level;
    return top === undefined || top <= this.lowest || this.isTried(top - 1)
      ? undefined
      : 2 ** (top - 1);
  }

  /** The number of batches that have run. */
  get count(): number {
    return this.batches;
  }

  private isTried(level: number): boolean {
    return this.known.some((each) => each.level === level);
  }

  /**
   * The ratio of a run to the median of its neighbours, two before and two after it: a lasting
   * change of the speed is no spread.
   */
  private comparedWithNeighbours(ratio: number): number {
    const { neighbours } = this;
    remember(neighbours, ratio, 5);
    return neighbours[neighbours.length >> 1]! / medianOf(neighbours);
  }

  /**
   * Moves the times of all sizes, and returns the factor. A single run may be a pause, so the median
   * of three counts. Small batches say little.
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

  /** Whether the size class has not run for so long that it counts as untried. */
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

function levelOf(work: number): number {
  return Math.ceil(Math.log2(work));
}

/** Adds a value, and keeps so many of the last. */
function remember(values: number[], value: number, most: number): void {
  if (values.push(value) > most) {
    values.shift();
  }
}

/** The median, the higher one of two. */
function medianOf(values: readonly number[]): number {
  return values.toSorted(ascending)[values.length >> 1]!;
}

function ascending(a: number, b: number): number {
  return a - b;
}
