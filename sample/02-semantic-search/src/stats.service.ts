import { Injectable, type OnApplicationBootstrap, type OnModuleDestroy } from '@nestjs/common';
import { ServingService, type BatchEndEvent } from 'nestjs-serving';
import { auditTime, map, type Observable, startWith, Subject, takeUntil } from 'rxjs';

/** The batches so far, and figures of the last ones. */
export interface Stats {
  readonly batches: number;
  readonly rows: number;
  /** Median run of the model, in ms. */
  readonly p50: number;
  readonly recent: readonly BatchEndEvent[];
}

const kept = 60;

@Injectable()
export class StatsService implements OnApplicationBootstrap, OnModuleDestroy {
  private readonly end$ = new Subject<void>();
  private recent: readonly BatchEndEvent[] = [];
  private batches = 0;
  private rows = 0;

  constructor(private readonly servings: ServingService) {}

  /** After `SearchService` has embedded its entries, which are no questions. */
  onApplicationBootstrap() {
    this.batches$.subscribe((batch) => this.count(batch));
  }

  /**
   * Ends the streams to browsers too: the server would wait for them, and the servings end only
   * after the server.
   */
  onModuleDestroy() {
    this.end$.next();
  }

  /** The current numbers, and again whenever batches have run, at most ten times a second. */
  get stats$(): Observable<Stats> {
    return this.batches$.pipe(
      auditTime(100),
      startWith(undefined),
      map(() => this.stats),
    );
  }

  get stats(): Stats {
    const { batches, rows, recent } = this;
    const runTimes = recent.map(({ runTime }) => runTime).toSorted((one, other) => one - other);
    return {
      batches,
      rows,
      p50: runTimes[Math.floor(runTimes.length / 2)] ?? 0,
      recent,
    };
  }

  private get batches$(): Observable<BatchEndEvent> {
    return this.servings.eventsOf('batch:end').pipe(takeUntil(this.end$));
  }

  private count(batch: BatchEndEvent) {
    this.batches += 1;
    this.rows += batch.rows;
    this.recent = [...this.recent, batch].slice(-kept);
  }
}
