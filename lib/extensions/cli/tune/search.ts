import { answeredPerSecond, type LoadResult, percentile } from '../load/open-loop.js';
import type { Branch, Setting } from './tune.command.js';

export interface Subject {
  /** Answers per second with full batches. */
  capacity(): Promise<number>;
  load(rate: number): Promise<LoadResult>;
  close(): Promise<void>;
}

export interface Trial {
  readonly setting: Setting;
  readonly capacity: number;
  readonly loads: readonly LoadResult[];
  /** Keeps the target at the highest rate, if any does. */
  readonly best: LoadResult | undefined;
}

/** Loads that each halve the interval of the highest rate. */
const LOADS = 4;

/** Settings in a row below the best that end a branch. */
const WORSE = 2;

/** Share by which a smaller setting may be slower. */
const TOLERANCE = 0.05;

/** True if all calls were answered, 99 % within `target` milliseconds. */
export function keepsTarget(result: LoadResult, target: number): boolean {
  const { answered, refused, failed, unsent } = result;
  return answered > 0 && refused + failed + unsent === 0 && percentile(result, 99) <= target;
}

/** Stops when larger batches gain nothing. */
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

/** Bisects for the highest rate that keeps the target. */
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
  // Near the capacity, calls begin to wait.
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

/** Answers per second; 0 if no load kept the target. */
export function rateOf({ best }: Trial): number {
  return best ? answeredPerSecond(best) : 0;
}

/** Smallest setting nearly as fast as the best: by threads, then batch size. */
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
