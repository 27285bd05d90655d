import { Module, ValidationPipe } from '@nestjs/common';
import { APP_PIPE } from '@nestjs/core';
import { ServingModule } from 'nestjs-serving';
import type { ModelFiles } from 'nestjs-serving/tasks';
import { MODEL_FILES, ModelModule } from './model.module.js';
import { StatsService } from './stats.service.js';
import { WriterController } from './writer.controller.js';
import { createWriter } from './writer.serving.js';
import { WriterService } from './writer.service.js';

@Module({
  imports: [
    ModelModule,
    ServingModule.forRootAsync({
      names: ['writer'],
      imports: [ModelModule],
      inject: [MODEL_FILES],
      useFactory: (files: ModelFiles) => ({ servings: [createWriter(files)] }),
    }),
  ],
  controllers: [WriterController],
  providers: [
    WriterService,
    StatsService,
    {
      provide: APP_PIPE,
      useValue: new ValidationPipe({ transform: true, stopAtFirstError: true }),
    },
  ],
})
export class AppModule {}
