import { Module } from '@nestjs/common';
import { ServingModule } from 'nestjs-serving';
import { fetchModel } from './fetch-model.js';
import { LinesService } from './lines.service.js';
import { OcrController } from './ocr.controller.js';
import { createReader } from './reader.js';
import { StatsService } from './stats.service.js';

@Module({
  imports: [
    ServingModule.forRootAsync({
      names: ['reader'],
      useFactory: async () => ({ servings: [createReader(await fetchModel())] }),
    }),
  ],
  controllers: [OcrController],
  providers: [LinesService, StatsService],
})
export class AppModule {}
