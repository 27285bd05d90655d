import { BullModule } from '@nestjs/bullmq';
import { Module } from '@nestjs/common';
import { ServingModule } from 'nestjs-serving';
import { ServingBoardModule } from 'nestjs-serving/board';
import { BoardGuard } from './board.guard.js';
import { Corpus } from './corpus.js';
import { CorpusController } from './corpus.controller.js';
import { createEmbedder } from './embedder.js';
import { IndexingService } from './indexing.service.js';
import { JobsBoardModule } from './jobs-board.module.js';
import { chunkQueue, redisUrl } from './redis.js';
import { SearchService } from './search.service.js';
import { VectorStore } from './vector-store.js';

@Module({
  imports: [
    BullModule.forRoot({ connection: { url: redisUrl } }),
    BullModule.registerQueue({ name: chunkQueue }),
    ServingModule.forRootAsync({
      names: ['embedder'],
      useFactory: async () => ({ servings: [await createEmbedder()] }),
    }),
    ServingBoardModule.forRoot({ path: 'boards/servings', guards: [BoardGuard] }),
    JobsBoardModule,
  ],
  controllers: [CorpusController],
  providers: [
    { provide: Corpus, useFactory: () => Corpus.read() },
    IndexingService,
    SearchService,
    VectorStore,
  ],
})
export class AppModule {}
