import { Injectable, type OnModuleDestroy, type OnModuleInit } from '@nestjs/common';
import { type ServingEvent, ServingService } from 'nestjs-serving';
import { auditTime, map, type Observable, startWith, Subject, takeUntil } from 'rxjs';
import { places } from './writer.serving.js';

/** The answers so far. */
export interface Stats {
  readonly prompts: number;
  /** Answers that are written now. One that has ended, or was stopped, no longer counts. */
  readonly running: number;
  readonly places: number;
  /** Mean share of the places that was used when the last answers began, 0 to 1. */
  readonly meanFill: number;
  /** The last answers, the newest at the end. */
  readonly recent: readonly StartedAnswer[];
}

/** An answer. Each is a batch of its own, which joins the others. */
export interface StartedAnswer {
  readonly batch: number;
  /** The answers that were written when it began, itself included. */
  readonly together: number;
  /** Milliseconds that it was written for; absent while it is. */
  readonly runTime?: number;
}

const kept = 40;

@Injectable()
export class StatsService implements OnModuleInit, OnModuleDestroy {
  private readonly end$ = new Subject<void>();
  private readonly running = new Set<number>();
  private recent: readonly StartedAnswer[] = [];
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
    const { prompts, running, recent } = this;
    const used = recent.reduce((sum, { together }) => sum + together, 0);
    return {
      prompts,
      running: running.size,
      places,
      meanFill: used / places / Math.max(1, recent.length),
      recent,
    };
  }

  private get events$(): Observable<ServingEvent> {
    return this.servings.events$.pipe(takeUntil(this.end$));
  }

  private count(event: ServingEvent) {
    if (event.type === 'batch:start') {
      const { batch, rows, calls } = event;
      this.prompts += rows;
      calls.forEach((call) => this.running.add(call));
      this.recent = [...this.recent, { batch, together: this.running.size }].slice(-kept);
    } else if (event.type === 'call:end') {
      this.running.delete(event.call);
    } else if (event.type === 'batch:end') {
      const { batch: ended, runTime } = event;
      this.recent = this.recent.map((each) => (each.batch === ended ? { ...each, runTime } : each));
    }
  }
}
