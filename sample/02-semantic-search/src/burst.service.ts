import { Injectable } from '@nestjs/common';
import { performance } from 'node:perf_hooks';
import { SearchService } from './search.service.js';
import { StatsService } from './stats.service.js';

/** The result of many questions at the same moment; times in ms. */
export interface Burst {
  readonly questions: number;
  readonly batches: number;
  readonly p50: number;
  readonly p99: number;
}

/** Sends the questions from inside, since a browser opens only six connections to one host. */
@Injectable()
export class BurstService {
  constructor(
    private readonly searches: SearchService,
    private readonly statistics: StatsService,
  ) {}

  async fire(count: number): Promise<Burst> {
    const { questions } = this.searches;
    const before = this.statistics.stats.batches;
    const start = performance.now();

    const callers = Array.from({ length: count }, async (_, index) => {
      await this.searches.search(questions[index % questions.length]!);
      return performance.now() - start;
    });
    const latencies = (await Promise.all(callers)).toSorted((one, other) => one - other);

    return {
      questions: count,
      batches: this.statistics.stats.batches - before,
      p50: latencies[Math.floor(count * 0.5)]!,
      p99: latencies[Math.floor(count * 0.99)]!,
    };
  }
}
