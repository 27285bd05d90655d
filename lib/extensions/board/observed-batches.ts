import { createHistogram, type RecordableHistogram } from 'node:perf_hooks';
import { isServingError, type BatchEndEvent } from '../../index.js';
import { isError } from '../../internal.js';
import type { SecondFigures } from './history.js';

/** A batch in the board's list. */
export interface BatchLine {
  /** Increases with each batch of any serving. */
  readonly number: number;
  /** Its end, in milliseconds since 1970. */
  readonly at: number;
  readonly version?: string | undefined;
  readonly key: string;
  readonly origin?: string | undefined;
  readonly partition: number;
  readonly rows: number;
  readonly batchSize: number;
  readonly fill: number;
  readonly padding: number;
  /** Only for servings with `batchSize.cost`. */
  readonly cost?: BatchEndEvent['cost'];
  readonly reason: string;
  /** Milliseconds. */
  readonly wait: number;
  readonly runTime: number;
  readonly steps?: number | undefined;
  /** The error's code or name. */
  readonly error?: string | undefined;
}

const LINES = 40;
/** Users choose keys and origins, of any length. */
const LONGEST_NAME = 200;
/** One hour in microseconds; longer times are clamped. */
const LONGEST = 3_600_000_000;

/** A serving's latest batches, and quantiles per second. */
export class ObservedBatches {
  private readonly waits = histogram();
  private readonly runs = histogram();
  /** The sum of this second's fills. */
  private fill = 0;
  private filled = 0;
  private count = 0;
  private readonly lines: BatchLine[] = [];

  observe(event: BatchEndEvent, number: number): void {
    if (event.revoked) {
      return;
    }
    record(this.waits, event.wait);
    record(this.runs, event.runTime);
    this.fill += event.fill;
    this.filled++;
    this.lines[this.count++ % LINES] = lineOf(event, number);
  }

  /** Ends the second. */
  take(): Pick<SecondFigures, 'fill' | 'waitMedian' | 'waitP99' | 'runMedian' | 'runP99'> {
    const { waits, runs } = this;
    const figures = {
      fill: this.fill / this.filled,
      waitMedian: millisecondsAt(waits, 50),
      waitP99: millisecondsAt(waits, 99),
      runMedian: millisecondsAt(runs, 50),
      runP99: millisecondsAt(runs, 99),
    };
    if (waits.count > 0) {
      waits.reset();
      runs.reset();
    }
    this.fill = this.filled = 0;
    return figures;
  }

  /** The oldest first. */
  since(number: number): readonly BatchLine[] {
    const oldest = this.count % LINES;
    const all = [...this.lines.slice(oldest), ...this.lines.slice(0, oldest)];
    return all.filter((line) => line.number > number);
  }
}

function lineOf(event: BatchEndEvent, number: number): BatchLine {
  const { version, origin, partition, rows, batchSize, fill, padding, cost, reason, steps } = event;
  return {
    number,
    at: Date.now(),
    version,
    key: event.key.slice(0, LONGEST_NAME),
    origin: origin?.slice(0, LONGEST_NAME),
    partition,
    rows,
    batchSize,
    fill,
    padding,
    cost,
    reason,
    wait: event.wait,
    runTime: event.runTime,
    steps,
    error: 'error' in event ? nameOf(event.error) : undefined,
  };
}

/** Not the message, which may contain callers' data. */
function nameOf(error: unknown): string | undefined {
  if (error === undefined) {
    return undefined;
  }
  const name = isServingError(error) ? error.code : isError(error) ? error.name : typeof error;
  return name.slice(0, LONGEST_NAME);
}

function histogram(): RecordableHistogram {
  return createHistogram({ lowest: 1, highest: LONGEST, figures: 2 });
}

/** Histograms take whole numbers from 1. */
function record(times: RecordableHistogram, milliseconds: number): void {
  times.record(Math.min(LONGEST, Math.max(1, Math.round(milliseconds * 1000))));
}

function millisecondsAt(times: RecordableHistogram, percentile: number): number {
  return times.count === 0 ? NaN : times.percentile(percentile) / 1000;
}
