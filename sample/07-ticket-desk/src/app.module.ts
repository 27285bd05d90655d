import { Module } from '@nestjs/common';
import { ConfigModule } from '@nestjs/config';
import { TerminusModule } from '@nestjs/terminus';
import { ServingModule } from 'nestjs-serving';
import { ServingOpenTelemetryModule } from 'nestjs-serving/opentelemetry';
import { ServingHealthIndicator } from 'nestjs-serving/terminus';
import { ClassifierService } from './classifier.service.js';
import { createEmbedder } from './embedder.serving.js';
import { fetchModel } from './fetch-model.js';
import { HealthController } from './health.controller.js';
import { type Settings, settings } from './settings.js';
import { TicketsController } from './tickets.controller.js';

@Module({
  imports: [
    ConfigModule.forRoot({ isGlobal: true, load: [settings] }),
    TerminusModule,
    ServingModule.forRootAsync({
      names: ['embedder'],
      inject: [settings.KEY],
      useFactory: async (config: Settings) => ({
        servings: [await createEmbedder(await fetchModel(), config)],
      }),
    }),
    ServingOpenTelemetryModule,
  ],
  controllers: [TicketsController, HealthController],
  providers: [ClassifierService, ServingHealthIndicator],
})
export class AppModule {}
