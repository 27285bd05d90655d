import { Processor, WorkerHost } from '@nestjs/bullmq';
import { Logger, type OnApplicationBootstrap, type OnModuleDestroy } from '@nestjs/common';
import type { Job } from 'bullmq';
import { InjectServing, Serving } from 'nestjs-serving';
import type { Embedding } from 'nestjs-serving/tasks';
import type { Chunk } from './corpus.js';
import { chunkQueue } from './redis.js';
import { VectorStore } from './vector-store.js';

@Processor(chunkQueue, {
  autorun: false,
  // While one job ends, the lines of the others keep the batches full.
  concurrency: 4,
  // A worker renews the lock of its jobs. When it is killed, the locks expire, and within a few
  // seconds another worker gets the jobs.
  lockDuration: 6_000,
  stalledInterval: 2_000,
  // A job fails after its workers were killed this many times: it may be the cause.
  maxStalledCount: 10,
})
export class ChunkProcessor extends WorkerHost implements OnApplicationBootstrap, OnModuleDestroy {
  private readonly logger = new Logger(ChunkProcessor.name);

  constructor(
    @InjectServing('embedder') private readonly embedder: Serving<string, Embedding>,
    private readonly store: VectorStore,
  ) {
    super();
  }

  /** Takes jobs once the serving is ready. */
  onApplicationBootstrap() {
    void this.worker.run();
  }

  /** May run twice for a chunk, for example when a worker is killed after it has saved. */
  async process({ data: chunk }: Job<Chunk>): Promise<void> {
    // All lines at the same time: the serving makes batches of them.
    const embeddings = await Promise.all(chunk.lines.map((line) => this.embedder.batchedRun(line)));
    await this.store.save(
      chunk,
      embeddings.map(({ vector }) => vector),
    );
    this.logger.log(`Indexed ${chunk.lines.length} lines from line ${chunk.first}`);
  }

  /** Takes no more jobs, and finishes those that run. The serving and Redis close after this. */
  async onModuleDestroy() {
    await this.worker.close();
  }
}
