import type { Subscription } from 'rxjs';
import type { ServingCounters, BatchEndEvent, ServingService, Serving } from '../../index.js';
import { History } from './history.js';
import { type BatchLine, ObservedBatches } from './observed-batches.js';

const SECOND = 1000;
/** How long batches are still observed after the last request. */
const SECONDS_OF_WATCH = 10;
/** An event costs microseconds, and a second's first batches are enough for quantiles. */
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
 * Records all servings' counters once a second. Batch events cost time, so batches are observed
 * only while the board is open; all viewers share the records.
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
  /** In this second. */
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

  /** The oldest first. */
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

  /** Servings of methods appear with their first call. */
  private addNew(): void {
    for (const [name, serving] of this.servings()) {
      if (!this.recorded.has(name)) {
        this.recorded.set(name, new Recorded(serving, this.seconds, this.second));
      }
    }
  }

  private observe(event: BatchEndEvent): void {
    const { serving } = event;
    // Events only name servings of the application, so the map is bounded.
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
