/** A 99th percentile of fewer runs is hardly more than their maximum. */
const RUNS_REMEMBERED = 300;

/** The spread before any run, and how many runs it counts as. */
const FIRST_SPREAD = 1.5;
const FIRST_RUNS = 16;

/** A longer run counts as this long: the machine paused, and a smaller batch would have, too. */
export const LONGEST_OVERRUN = 3;

const QUANTILE = 0.99;

/**
 * How far run times exceed what we expected: the 99th percentile of actual ÷ expected time. A
 * percentile of few runs is too low, so the spread starts at 1.5, with the weight of 16 runs.
 */
export class RunTimeSpread {
  /** The last runs, as they came and sorted. */
  private readonly ratios = new Float64Array(RUNS_REMEMBERED);
  private readonly sorted = new Float64Array(RUNS_REMEMBERED).fill(Infinity);
  private runs = 0;
  /** Factor by which a run may exceed its expected time; at least 1. */
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

/** Replaces one of the ascending values; those in between move by one place. */
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
