import { LONGEST_OVERRUN, RunTimeSpread } from './run-time-spread.js';

/** Batches to learn from before calls are refused by what was learned. */
export const BATCHES_TO_BELIEVE = 8;

/** Weight of the newest batch in the mean of its size class, once the class is known. */
const LEAST_WEIGHT = 0.1;

/**
 * How far a batch moves the speed of all sizes towards its own, when it is slower and when it is
 * faster: a machine that is faster than before may soon be slower again.
 */
const SLOWER_GAIN = 0.3;
const FASTER_GAIN = 0.05;

/**
 * Batches until a size class that has run once counts as untried again, doubled by each further
 * run: a cold first run must not rule a size out.
 */
const BATCHES_UNTIL_RETRY = 64;

/** The runs of a size after which smaller sizes are judged by it. */
const RUNS_TO_TRUST = 3;

/** A size is the best if larger ones carry less work per millisecond, by more than this. */
const CLEARLY_LESS = 0.93;

/** The shortest run in milliseconds. A clock may show none, and 0 has no ratio to other times. */
const SHORTEST_RUN = 0.001;

/** The batches whose work lies between two powers of two. */
interface SizeClass {
  /** The largest work of the class: 2 to this power. */
  readonly level: number;
  /** Means of the work and of the time, the latter at a speed of 1. */
  work: number;
  time: number;
  runs: number;
  /** The largest work that has run. */
  most: number;
  /** The number of the batch from which on it counts as untried. */
  retryAt: number;
}

/**
 * Expected run times of batches by their work: the number of rows, or their cost where rows have
 * one.
 *
 * It remembers a mean for each size class (powers of two), and one speed for all of them. So a size
 * keeps what was learned of it while other sizes run, and a machine that becomes slower makes all
 * sizes slower. Between the means, times are interpolated, and they never decrease with the work
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
  private speed = 1;
  private batches = 0;
  /** The latest run times, relative to those expected: of the speed, and of all sizes at speed 1. */
  private latest: number[] = [];
  private neighbours: number[] = [];
  private known: SizeClass[] = [];
  /** The work above which batches are less efficient. */
  best = Infinity;

  /** The work of the smallest batch there is, if that is known. */
  constructor(private readonly lowest = -Infinity) {}

  /** Learns from a batch that has run. */
  learn(work: number, measured: number): void {
    const milliseconds = Math.max(measured, SHORTEST_RUN);
    this.batches++;
    const level = levelOf(work);
    const isTried = this.isTried(level);
    const expected = this.estimate(work);
    let time = milliseconds;
    if (isTried && expected !== undefined && expected > 0) {
      this.spread.learn(this.comparedWithNeighbours((milliseconds / expected) * this.speed));
      // A pause of the machine is no property of the model. A lasting change is learned in steps.
      time = Math.min(milliseconds, LONGEST_OVERRUN * expected);
      this.adaptSpeed(time / expected, expected);
    }
    this.record(level, work, time / this.speed);
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
      return first.time * this.speed;
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
    return (below.time + slope * (work - below.work)) * this.speed;
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
    this.neighbours = [...this.neighbours.slice(-4), ratio];
    const middle = this.neighbours[Math.floor(this.neighbours.length / 2)]!;
    return middle / medianOf(this.neighbours);
  }

  /** A single run may be a pause, so the median of three counts. Small batches say little. */
  private adaptSpeed(ratio: number, expected: number): void {
    this.latest = [...this.latest.slice(-2), ratio];
    const largest = this.estimate(this.largest)!;
    const middle = medianOf(this.latest);
    const gain = middle > 1 ? SLOWER_GAIN : FASTER_GAIN;
    const change = middle ** (gain * Math.min(1, expected / largest));
    this.speed *= change;
    this.latest = this.latest.map((each) => each / change);
  }

  private record(level: number, work: number, time: number): void {
    let known = this.classes.find((each) => each.level === level);
    if (!known) {
      known = { level, work, time, runs: 0, most: 0, retryAt: 0 };
      this.classes.push(known);
      this.classes.sort((a, b) => a.level - b.level);
    }
    const weight = Math.max(1 / ++known.runs, LEAST_WEIGHT);
    known.work += weight * (work - known.work);
    known.time += weight * (time - known.time);
    known.most = Math.max(known.most, work);
    known.retryAt =
      known.runs < BATCHES_TO_BELIEVE
        ? this.batches + BATCHES_UNTIL_RETRY * 2 ** known.runs
        : Infinity;
  }

  private update(): void {
    this.known = this.classes.filter(({ retryAt }) => retryAt > this.batches);
    const pools: { work: number; time: number; weight: number; members: SizeClass[] }[] = [];
    for (const each of this.known) {
      let pool = { ...each, weight: Math.min(each.runs, 1 / LEAST_WEIGHT), members: [each] };
      for (let last = pools.at(-1); last && last.time >= pool.time; last = pools.at(-1)) {
        pools.pop();
        const weight = last.weight + pool.weight;
        const time = (last.time * last.weight + pool.time * pool.weight) / weight;
        pool = { ...pool, time, weight, members: [...last.members, ...pool.members] };
      }
      pools.push(pool);
    }
    this.points = pools.flatMap(({ time, members }) => members.map(({ work }) => ({ work, time })));
    this.best = this.mostEfficient();
  }

  private mostEfficient(): number {
    const paces = this.points.map(({ work, time }) => work / time);
    const most = Math.max(...paces);
    const index = paces.findLastIndex((pace) => !(pace < most * CLEARLY_LESS));
    return index < 0 || index === paces.length - 1 ? Infinity : 2 ** this.known[index]!.level;
  }
}

function levelOf(work: number): number {
  return Math.ceil(Math.log2(work));
}

function medianOf(values: readonly number[]): number {
  return values.toSorted((a, b) => a - b)[Math.floor(values.length / 2)]!;
}
