import type { Subscription } from 'rxjs';
import {
  type BatchEndEvent,
  isServingError,
  type Serving,
  type ServingCounters,
  type ServingService,
} from '../../index.js';
import { createHistogram, type RecordableHistogram } from 'node:perf_hooks';
import { isError } from '../../doors/text.js';

const SECOND = 1000;
/** Time that we observe batches after the last request. */
const SECONDS_OF_WATCH = 10;
/** First batches of a second are enough for quantiles. */
const MOST_BATCHES = 500;
const NOT_OBSERVED = {
  fill: NaN,
  waitMedian: NaN,
  waitP99: NaN,
  runMedian: NaN,
  runP99: NaN,
};
const NO_COUNTS: ServingCounters = {
  answered: 0,
  failed: {},
  batches: 0,
  failedBatches: 0,
  rows: 0,
  padding: 0,
};

class Recorded {
  readonly history: History;
  private before: ServingCounters;

  constructor(serving: Serving, seconds: number, begin: number) {
    this.history = new History(seconds, begin);
    this.before = serving.counters() ?? NO_COUNTS;
  }

  add(serving: Serving, observed: ObservedBatches | undefined): void {
    const { before } = this;
    const now = serving.counters() ?? NO_COUNTS;
    this.before = now;
    this.history.add({
      answered: now.answered - before.answered,
      failed: failures(now) - failures(before),
      rows: now.rows - before.rows,
      batches: now.batches - before.batches,
      padding: now.padding - before.padding,
      queued: serving.queued,
      ...(observed?.take() ?? NOT_OBSERVED),
    });
  }
}

/**
 * Records all counters once a second. Batch events cost time, so we observe batches only while the
 * board is open. Viewers share the records.
 */
export class Recorder {
  second = 0;
  /** Milliseconds since 1970. */
  watchedSince: number | undefined;
  private readonly recorded = new Map<string, Recorded>();
  private readonly observed = new Map<string, ObservedBatches>();
  private timer: NodeJS.Timeout | undefined;
  private watch: Subscription | undefined;
  private viewedAt = -Infinity;
  private batches = 0;
  private batchesNow = 0;

  constructor(
    private readonly seconds: number,
    private readonly service: Pick<ServingService, 'eventsOf'>,
    private readonly servings: () => Iterable<readonly [string, Serving]>,
  ) {}

  begin(): void {
    this.addNew();
    this.timer = setInterval(() => this.tick(), SECOND).unref();
  }

  close(): void {
    clearInterval(this.timer);
    this.endWatch();
  }

  viewed(): void {
    this.viewedAt = this.second;
    this.watchedSince ??= Date.now();
    this.beginWatch();
  }

  historyOf(serving: string): History | undefined {
    return this.recorded.get(serving)?.history;
  }

  /** Oldest first. */
  batchesOf(serving: string, number: number): readonly BatchLine[] {
    return this.observed.get(serving)?.since(number) ?? [];
  }

  private tick(): void {
    for (const [name, serving] of this.servings()) {
      this.recorded.get(name)?.add(serving, this.observed.get(name));
    }
    this.second++;
    this.addNew();
    this.batchesNow = 0;
    if (this.second - this.viewedAt > SECONDS_OF_WATCH) {
      this.endWatch();
    } else {
      this.beginWatch();
    }
  }

  /** Methods' servings appear with their first call. */
  private addNew(): void {
    for (const [name, serving] of this.servings()) {
      if (!this.recorded.has(name)) {
        this.recorded.set(name, new Recorded(serving, this.seconds, this.second));
      }
    }
  }

  private observe(event: BatchEndEvent): void {
    const { serving } = event;
    // Bounded: events name only the application's servings.
    const observed = this.observed.get(serving) ?? new ObservedBatches();
    this.observed.set(serving, observed);
    observed.observe(event, ++this.batches);
    if (++this.batchesNow === MOST_BATCHES) {
      this.pauseWatch();
    }
  }

  private beginWatch(): void {
    if (this.batchesNow < MOST_BATCHES) {
      this.watch ??= this.service.eventsOf('batch:end').subscribe((event) => this.observe(event));
    }
  }

  private pauseWatch(): void {
    this.watch?.unsubscribe();
    this.watch = undefined;
  }

  private endWatch(): void {
    this.pauseWatch();
    this.watchedSince = undefined;
    this.observed.clear();
  }
}

function failures({ failed }: ServingCounters): number {
  return Object.values(failed).reduce((sum, count) => sum + count, 0);
}

export interface BatchLine {
  /** Increases with each batch of any serving. */
  readonly number: number;
  /** End, in milliseconds since 1970. */
  readonly at: number;
  readonly version?: string | undefined;
  readonly key: string;
  readonly origin?: string | undefined;
  readonly partition: number;
  readonly rows: number;
  readonly batchSize: number;
  readonly fill: number;
  readonly padding: number;
  /** Given for servings with `batchSize.cost`. */
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
/** Users choose keys and origins of any length. */
const LONGEST_NAME = 200;
/** One hour in microseconds. */
const LONGEST = 3_600_000_000;

export class ObservedBatches {
  private readonly waits = histogram();
  private readonly runs = histogram();
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

  /** Oldest first. */
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

/** Omits the message, which may contain callers' data. */
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

export interface SecondFigures {
  readonly answered: number;
  /** Includes refused calls. */
  readonly failed: number;
  readonly rows: number;
  readonly batches: number;
  readonly padding: number;
  /** At the end of the second. */
  readonly queued: number;
  /** Rows as a share of the capacity; NaN if unobserved. */
  readonly fill: number;
  /** Milliseconds; NaN if unobserved. */
  readonly waitMedian: number;
  readonly waitP99: number;
  readonly runMedian: number;
  readonly runP99: number;
}

const NAMES = [
  'answered',
  'failed',
  'rows',
  'batches',
  'padding',
  'queued',
  'fill',
  'waitMedian',
  'waitP99',
  'runMedian',
  'runP99',
] as const satisfies readonly (keyof SecondFigures)[];

/** Null if nothing was recorded. */
export type Columns = Readonly<Record<keyof SecondFigures, readonly (number | null)[]>>;

/** Last seconds, in memory of fixed size. */
export class History {
  private readonly columns: Readonly<Record<keyof SecondFigures, Float32Array>>;
  /** Second after the last one. */
  private end: number;

  constructor(
    private readonly seconds: number,
    private readonly begin: number,
  ) {
    this.columns = byName(() => new Float32Array(seconds).fill(NaN));
    this.end = begin;
  }

  add(figures: SecondFigures): void {
    const place = this.end++ % this.seconds;
    NAMES.forEach((name) => (this.columns[name][place] = figures[name]));
  }

  firstAfter(second: number): number {
    return Math.max(second + 1, this.begin, this.end - this.seconds);
  }

  since(second: number): Columns {
    const first = this.firstAfter(second);
    const length = Math.max(0, this.end - first);
    return byName((name) =>
      Array.from({ length }, (_, i) => numberOf(this.columns[name][(first + i) % this.seconds])),
    );
  }

  mean(name: keyof SecondFigures, seconds: number): number {
    const values = this.since(Math.max(this.begin, this.end - seconds) - 1)[name].map(Number);
    return values.length === 0 ? 0 : values.reduce((sum, value) => sum + value, 0) / values.length;
  }
}

function byName<Value>(
  make: (name: keyof SecondFigures) => Value,
): Record<keyof SecondFigures, Value> {
  return Object.fromEntries(NAMES.map((name) => [name, make(name)])) as never;
}

/** JSON has no NaN; three decimals are enough for a chart. */
function numberOf(value: number | undefined): number | null {
  return value === undefined || Number.isNaN(value) ? null : Math.round(value * 1000) / 1000;
}
