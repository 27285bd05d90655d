import { BullModule } from '@nestjs/bullmq';
import { Module } from '@nestjs/common';
import { ServingModule } from 'nestjs-serving';
import { ChunkProcessor } from './chunk.processor.js';
import { createEmbedder } from './embedder.js';
import { chunkQueue, redisUrl } from './redis.js';
import { VectorStore } from './vector-store.js';

@Module({
  imports: [
    BullModule.forRoot({ connection: { url: redisUrl } }),
    BullModule.registerQueue({ name: chunkQueue }),
    ServingModule.forRootAsync({
      names: ['embedder'],
      useFactory: async () => ({ servings: [await createEmbedder()] }),
    }),
  ],
  providers: [ChunkProcessor, VectorStore],
})
export class WorkerModule {}
