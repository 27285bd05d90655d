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
  /** A few of the questions, with the best answer to each. */
  readonly examples: readonly { readonly question: string; readonly answer: string }[];
}

const shown = 3;

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
      const question = questions[index % questions.length]!;
      const [best] = await this.searches.search(question);
      return { question, answer: best!.answer, latency: performance.now() - start };
    });
    const replies = await Promise.all(callers);
    const latencies = replies.map(({ latency }) => latency).toSorted((one, other) => one - other);

    return {
      questions: count,
      batches: this.statistics.stats.batches - before,
      p50: latencies[Math.floor(count * 0.5)]!,
      p99: latencies[Math.floor(count * 0.99)]!,
      examples: replies.slice(0, shown).map(({ question, answer }) => ({ question, answer })),
    };
  }
}
