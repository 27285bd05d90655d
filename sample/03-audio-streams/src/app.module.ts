import { Module, ValidationPipe } from '@nestjs/common';
import { APP_PIPE } from '@nestjs/core';
import { ServingModule } from 'nestjs-serving';
import { PageController } from './page.controller.js';
import { SimulationController } from './simulation.controller.js';
import { SimulationService } from './simulation.service.js';
import { StatsService } from './stats.service.js';
import { StreamsController } from './streams.controller.js';
import { StreamsService } from './streams.service.js';
import { vad } from './vad.serving.js';

@Module({
  imports: [ServingModule.forRoot({ servings: [vad] })],
  controllers: [StreamsController, SimulationController, PageController],
  providers: [
    StreamsService,
    SimulationService,
    StatsService,
    { provide: APP_PIPE, useValue: new ValidationPipe() },
  ],
})
export class AppModule {}
