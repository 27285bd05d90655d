import { Injectable, type OnModuleDestroy } from '@nestjs/common';
import { type BatchEndEvent, ServingService } from 'nestjs-serving';

export interface Stats {
  readonly batches: number;
  readonly rows: number;
  /** The share of a batch that was used, on average. */
  readonly meanFill: number;
}

const none: Stats = { batches: 0, rows: 0, meanFill: 0 };

/** The batches and rows so far, by serving. */
@Injectable()
export class StatsService implements OnModuleDestroy {
  private readonly stats = new Map<string, Stats>();
  private readonly subscription;

  constructor(servings: ServingService) {
    this.subscription = servings.eventsOf('batch:end').subscribe((event) => this.count(event));
  }

  onModuleDestroy() {
    this.subscription.unsubscribe();
  }

  of(serving: string): Stats {
    return this.stats.get(serving) ?? none;
  }

  all(): Record<string, Stats> {
    return Object.fromEntries(this.stats);
  }

  private count({ serving, rows, fill }: BatchEndEvent) {
    const { batches, rows: rowsBefore, meanFill } = this.of(serving);
    this.stats.set(serving, {
      batches: batches + 1,
      rows: rowsBefore + rows,
      meanFill: meanFill + (fill - meanFill) / (batches + 1),
    });
  }
}
