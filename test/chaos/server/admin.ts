import { readdirSync } from 'node:fs';
import { Controller, Get, Injectable, type OnModuleInit } from '@nestjs/common';
import { isServingError, ServingService } from 'nestjs-serving';
import type { Admin } from './options.js';

/** Counts what happens. */
@Injectable()
export class Counts implements OnModuleInit {
  accepted = 0;
  retried = 0;
  readonly calls: Record<string, number> = {};
  readonly failures: Record<string, number> = {};

  constructor(private readonly servings: ServingService) {}

  onModuleInit(): void {
    this.servings.eventsOf('call:start').subscribe(({ serving }) => count(this.calls, serving));
    this.servings.eventsOf('batch:end').subscribe(({ retried = 0 }) => (this.retried += retried));
    this.servings.eventsOf('call:end').subscribe(({ error }) => {
      if (error !== undefined) {
        count(this.failures, isServingError(error) ? error.code : 'another');
      }
    });
  }
}

/** What those who watch over it ask. */
@Controller('admin')
export class AdminController {
  constructor(
    private readonly counts: Counts,
    private readonly servings: ServingService,
  ) {}

  @Get()
  admin(): Admin {
    const { accepted, calls, failures, retried } = this.counts;
    const health = this.servings.health();
    const partitions = health.flatMap((each) => each.partitions);
    const { heapUsed, external } = process.memoryUsage();
    return {
      accepted,
      calls,
      failures,
      retried,
      queued: Object.fromEntries(health.map(({ serving, queued }) => [serving, queued])),
      restarts: partitions.reduce((sum, { restarts }) => sum + restarts, 0),
      partitions: partitions.map(({ state }) => state),
      memory: heapUsed + external,
      files: readdirSync('/dev/fd').length,
    };
  }
}

function count(counts: Record<string, number>, name: string): void {
  counts[name] = (counts[name] ?? 0) + 1;
}
