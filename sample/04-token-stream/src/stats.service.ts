import { Injectable, type OnModuleDestroy, type OnModuleInit } from '@nestjs/common';
import { type BatchEndEvent, type ServingEvent, ServingService } from 'nestjs-serving';
import { auditTime, map, type Observable, startWith, Subject, takeUntil } from 'rxjs';

/** The batches so far, the running one included. */
export interface Stats {
  readonly batches: number;
  readonly prompts: number;
  /** Answers that are written now. One that has ended, or was stopped, no longer counts. */
  readonly running: number;
  /** Mean share of the last batches that was used, 0 to 1. */
  readonly meanFill: number;
  /** The last batches, the newest at the end. */
  readonly recent: readonly StartedBatch[];
}

export interface StartedBatch extends Pick<BatchEndEvent, 'batch' | 'rows' | 'batchSize' | 'fill'> {
  /** Milliseconds that it ran; absent while it runs. */
  readonly runTime?: number;
}

const kept = 40;

@Injectable()
export class StatsService implements OnModuleInit, OnModuleDestroy {
  private readonly end$ = new Subject<void>();
  private readonly running = new Set<number>();
  private recent: readonly StartedBatch[] = [];
  private batches = 0;
  private prompts = 0;

  constructor(private readonly servings: ServingService) {}

  onModuleInit() {
    this.events$.subscribe((event) => this.count(event));
  }

  /**
   * Ends the streams to browsers too: the server would wait for them, and the servings end only
   * after the server.
   */
  onModuleDestroy() {
    this.end$.next();
  }

  /** The current numbers, and again when they change, at most ten times a second. */
  get stats$(): Observable<Stats> {
    return this.events$.pipe(
      auditTime(100),
      startWith(undefined),
      map(() => this.stats),
    );
  }

  get stats(): Stats {
    const { batches, prompts, running, recent } = this;
    const filled = recent.reduce((sum, { fill }) => sum + fill, 0);
    return {
      batches,
      prompts,
      running: running.size,
      meanFill: filled / Math.max(1, recent.length),
      recent,
    };
  }

  private get events$(): Observable<ServingEvent> {
    return this.servings.events$.pipe(takeUntil(this.end$));
  }

  private count(event: ServingEvent) {
    if (event.type === 'batch:start') {
      const { batch, rows, batchSize, fill, calls } = event;
      this.batches += 1;
      this.prompts += rows;
      this.recent = [...this.recent, { batch, rows, batchSize, fill }].slice(-kept);
      calls.forEach((call) => this.running.add(call));
    } else if (event.type === 'call:end') {
      this.running.delete(event.call);
    } else if (event.type === 'batch:end') {
      const { batch: ended, runTime } = event;
      this.recent = this.recent.map((each) => (each.batch === ended ? { ...each, runTime } : each));
    }
  }
}
