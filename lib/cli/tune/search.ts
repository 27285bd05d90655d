import { answeredPerSecond, type LoadResult, percentile } from '../load/open-loop.js';
import type { Branch, Setting } from './settings.js';

/** A serving with a setting, for measurements. */
export interface Subject {
  /** Answers per second when as many calls wait as it can batch. */
  capacity(): Promise<number>;
  /** The result of an open-loop load. */
  load(rate: number): Promise<LoadResult>;
  close(): Promise<void>;
}

/** The best load of a setting. */
export interface Trial {
  readonly setting: Setting;
  readonly capacity: number;
  /** All loads, in ascending order of their rates. */
  readonly loads: readonly LoadResult[];
  /** The load of the highest rate that keeps the target; undefined if none does. */
  readonly best: LoadResult | undefined;
}

/** Loads of one setting: each halves the interval in which the highest rate lies. */
const LOADS = 4;

/** A branch ends after so many settings in a row that are worse than its best. */
const WORSE = 2;

/** A setting that is at most so much slower than the best one, and smaller, is recommended. */
const TOLERANCE = 0.05;

/** Whether 99 of 100 calls were answered in that many milliseconds, and all of them at all. */
export function keepsTarget(result: LoadResult, target: number): boolean {
  const { answered, refused, failed, unsent } = result;
  return answered > 0 && refused + failed + unsent === 0 && percentile(result, 99) <= target;
}

/** Tries the settings of a branch until larger batches gain nothing. */
export async function searchBranch(
  branch: Branch,
  open: (setting: Setting) => Promise<Subject>,
  target: number,
  onLoad: (setting: Setting) => void = () => undefined,
): Promise<readonly Trial[]> {
  const trials: Trial[] = [];
  let mostRate = 0;
  let worse = 0;
  for (const setting of branch) {
    const subject = await open(setting);
    try {
      const trial = await trialOf(setting, subject, target, onLoad);
      trials.push(trial);
      const rate = rateOf(trial);
      worse = rate > mostRate ? 0 : worse + 1;
      mostRate = Math.max(mostRate, rate);
    } finally {
      await subject.close();
    }
    if (worse >= WORSE) {
      break;
    }
  }
  return trials;
}

/** Finds the highest rate that keeps the target by bisection. */
async function trialOf(
  setting: Setting,
  subject: Subject,
  target: number,
  onLoad: (setting: Setting) => void,
): Promise<Trial> {
  const capacity = await subject.capacity();
  const loads: LoadResult[] = [];
  let best: LoadResult | undefined;
  let [low, high] = [0, capacity];
  // Most of the capacity first: near it the waiting begins.
  let rate = capacity * 0.85;
  for (let i = 0; i < LOADS; i++) {
    onLoad(setting);
    const result = await subject.load(rate);
    loads.push(result);
    if (keepsTarget(result, target)) {
      best = result;
      low = rate;
    } else {
      high = rate;
    }
    rate = (low + high) / 2;
  }
  return { setting, capacity, loads: loads.toSorted((a, b) => a.rate - b.rate), best };
}

/** Answers per second in time; 0 if no rate kept the target. */
export function rateOf({ best }: Trial): number {
  return best ? answeredPerSecond(best) : 0;
}

/**
 * The smallest setting that is nearly as fast as the fastest: fewer threads in all, then smaller
 * batches. Undefined if none keeps the target.
 */
export function recommended(trials: readonly Trial[]): Trial | undefined {
  const most = Math.max(0, ...trials.map(rateOf));
  const [smallest] = trials
    .filter((trial) => trial.best && rateOf(trial) >= most * (1 - TOLERANCE))
    .toSorted((a, b) => costOf(a.setting) - costOf(b.setting));
  return smallest;
}

function costOf({ partitions, threads, batchSize }: Setting): number {
  return partitions * threads * 1e6 + batchSize;
}
