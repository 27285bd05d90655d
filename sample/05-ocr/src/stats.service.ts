import { Injectable, type OnModuleDestroy, type OnModuleInit } from '@nestjs/common';
import { ServingService, type BatchEndEvent } from 'nestjs-serving';
import { auditTime, map, type Observable, startWith, Subject, takeUntil } from 'rxjs';

/** The batches of one key on one partition. */
export interface Lane {
  readonly key: string;
  readonly partition: number;
  readonly batches: number;
  readonly rows: number;
  /** In ms, of all its batches. */
  readonly runTime: number;
}

export interface Stats {
  readonly lanes: readonly Lane[];
  /** The last batches, the newest at the end. */
  readonly recent: readonly BatchEndEvent[];
}

const kept = 60;

@Injectable()
export class StatsService implements OnModuleInit, OnModuleDestroy {
  private readonly end$ = new Subject<void>();
  private readonly lanes = new Map<string, Lane>();
  private recent: readonly BatchEndEvent[] = [];

  constructor(private readonly servings: ServingService) {}

  onModuleInit() {
    this.batches$.subscribe((batch) => this.count(batch));
  }

  /**
   * Ends the streams to browsers too: the server would wait for them, and the servings end only
   * after the server.
   */
  onModuleDestroy() {
    this.end$.next();
  }

  get stats(): Stats {
    return { lanes: [...this.lanes.values()], recent: this.recent };
  }

  /** The current numbers, and again whenever batches have run, at most ten times a second. */
  get stats$(): Observable<Stats> {
    return this.batches$.pipe(
      auditTime(100),
      startWith(undefined),
      map(() => this.stats),
    );
  }

  private get batches$(): Observable<BatchEndEvent> {
    return this.servings.eventsOf('batch:end').pipe(takeUntil(this.end$));
  }

  private count(batch: BatchEndEvent) {
    const { key, partition } = batch;
    const name = `${key} ${partition}`;
    const { batches, rows, runTime } = this.lanes.get(name) ?? { batches: 0, rows: 0, runTime: 0 };
    this.lanes.set(name, {
      key,
      partition,
      batches: batches + 1,
      rows: rows + batch.rows,
      runTime: runTime + batch.runTime,
    });
    this.recent = [...this.recent, batch].slice(-kept);
  }
}
