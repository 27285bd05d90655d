import { Module } from '@nestjs/common';
import { ServingModule } from 'nestjs-serving';
import { createEmbedder } from './embedder.js';
import { fetchModel } from './fetch-model.js';
import { BurstService } from './burst.service.js';
import { SearchController } from './search.controller.js';
import { SearchService } from './search.service.js';
import { StatsService } from './stats.service.js';

@Module({
  imports: [
    ServingModule.forRootAsync({
      names: ['embedder'],
      useFactory: async () => ({ servings: [createEmbedder(await fetchModel())] }),
    }),
  ],
  controllers: [SearchController],
  providers: [SearchService, StatsService, BurstService],
})
export class AppModule {}
