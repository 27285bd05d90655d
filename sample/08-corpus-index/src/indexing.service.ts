import { InjectQueue } from '@nestjs/bullmq';
import { Injectable, type OnModuleDestroy } from '@nestjs/common';
import type { Queue } from 'bullmq';
import { distinctUntilChanged, exhaustMap, type Observable, Subject, takeUntil, timer } from 'rxjs';
import { type Chunk, Corpus } from './corpus.js';
import { chunkQueue } from './redis.js';
import { VectorStore } from './vector-store.js';

export interface Progress {
  /** Lines of the corpus. */
  readonly lines: number;
  /** Lines that have a vector. */
  readonly indexed: number;
  /** Jobs of the queue that wait, also for their next attempt. */
  readonly waiting: number;
  readonly active: number;
  readonly failed: number;
  readonly workers: number;
}

/** Makes the jobs, and counts what workers have done. All state is in Redis. */
@Injectable()
export class IndexingService implements OnModuleDestroy {
  private readonly end$ = new Subject<void>();

  constructor(
    private readonly corpus: Corpus,
    private readonly store: VectorStore,
    @InjectQueue(chunkQueue) private readonly queue: Queue<Chunk>,
  ) {}

  /** Adds the corpus to the queue. Jobs that were added before, also completed ones, stay. */
  async start(): Promise<Progress> {
    await this.queue.addBulk(
      this.corpus.chunks.map((chunk) => ({
        name: `from line ${chunk.first}`,
        data: chunk,
        opts: {
          jobId: `${chunk.corpus}-${chunk.first}`,
          attempts: 3,
          backoff: { type: 'exponential', delay: 1_000 },
        },
      })),
    );
    // A failed job keeps its id, so that adding it again has no effect.
    await this.queue.retryJobs({ state: 'failed' });
    return this.progress();
  }

  async progress(): Promise<Progress> {
    const [indexed, jobs, workers] = await Promise.all([
      this.store.count(this.corpus.id),
      this.queue.getJobCounts('waiting', 'delayed', 'active', 'failed'),
      this.queue.getWorkersCount(),
    ]);
    const { waiting = 0, delayed = 0, active = 0, failed = 0 } = jobs;
    const { lines } = this.corpus;
    return { lines: lines.length, indexed, waiting: waiting + delayed, active, failed, workers };
  }

  /** The current progress, and each change. */
  get progress$(): Observable<Progress> {
    return timer(0, 300).pipe(
      exhaustMap(() => this.progress()),
      distinctUntilChanged((one, other) => JSON.stringify(one) === JSON.stringify(other)),
      takeUntil(this.end$),
    );
  }

  /** Ends the streams to browsers, for which the server would wait. */
  onModuleDestroy() {
    this.end$.next();
  }
}
