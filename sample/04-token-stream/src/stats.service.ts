import { Injectable, type OnModuleDestroy, type OnModuleInit } from '@nestjs/common';
import { type ServingEvent, ServingService } from 'nestjs-serving';
import {
  auditTime,
  BehaviorSubject,
  type Observable,
  scan,
  startWith,
  Subject,
  takeUntil,
} from 'rxjs';

/** What batches have run. */
export interface Stats {
  readonly batches: number;
  readonly prompts: number;
  /** Prompts in the batch that runs now, those that have been answered included. */
  readonly running: number;
  /** Mean share of the last batches that was used, 0 to 1. */
  readonly meanFill: number;
  readonly recent: readonly BatchEnd[];
}

type BatchEnd = Extract<ServingEvent, { type: 'batch:end' }>;

const kept = 40;
const none: Stats = { batches: 0, prompts: 0, running: 0, meanFill: 0, recent: [] };

@Injectable()
export class StatsService implements OnModuleInit, OnModuleDestroy {
  private readonly current$ = new BehaviorSubject(none);
  private readonly end$ = new Subject<void>();

  constructor(private readonly servings: ServingService) {}

  onModuleInit() {
    this.servings.events$
      .pipe(takeUntil(this.end$), scan(count, none))
      .subscribe((stats) => this.current$.next(stats));
  }

  /**
   * Ends the streams to browsers too: the server would wait for them, and the servings end only
   * after the server.
   */
  onModuleDestroy() {
    this.end$.next();
  }

  get stats(): Stats {
    return this.current$.value;
  }

  /** The current numbers, and again when they change, at most ten times a second. */
  get stats$(): Observable<Stats> {
    return this.current$.pipe(auditTime(100), startWith(this.stats), takeUntil(this.end$));
  }
}

function count(stats: Stats, event: ServingEvent): Stats {
  if (event.type === 'batch:start') {
    return { ...stats, running: stats.running + event.rows };
  }
  if (event.type !== 'batch:end') {
    return stats;
  }
  const recent = [...stats.recent, event].slice(-kept);
  return {
    batches: stats.batches + 1,
    prompts: stats.prompts + event.rows,
    running: stats.running - event.rows,
    meanFill: recent.reduce((sum, { fill }) => sum + fill, 0) / recent.length,
    recent,
  };
}
