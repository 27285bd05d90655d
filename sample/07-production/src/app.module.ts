import { Module } from '@nestjs/common';
import { ConfigModule } from '@nestjs/config';
import { APP_FILTER } from '@nestjs/core';
import { TerminusModule } from '@nestjs/terminus';
import { ServingModule } from 'nestjs-serving';
import { ServingBoardModule } from 'nestjs-serving/board';
import { InferenceProtocolModule } from 'nestjs-serving/inference-protocol';
import { ServingOpenTelemetryModule } from 'nestjs-serving/opentelemetry';
import { ServingHealthIndicator } from 'nestjs-serving/terminus';
import { ApiKeyGuard, tenantOf } from './api-key.guard.js';
import { BoardGuard } from './board.guard.js';
import { ClassifierService } from './classifier.service.js';
import { createEmbedder } from './embedder.serving.js';
import { fetchModel } from './fetch-model.js';
import { HealthController } from './health.controller.js';
import { RefusalFilter } from './refusal.filter.js';
import { RolloutController } from './rollout.controller.js';
import { RolloutService } from './rollout.service.js';
import { type Settings, settings } from './settings.js';
import { TicketsController } from './tickets.controller.js';

@Module({
  imports: [
    ConfigModule.forRoot({ isGlobal: true, load: [settings] }),
    TerminusModule,
    ServingModule.forRootAsync({
      names: ['embedder'],
      inject: [settings.KEY],
      useFactory: async (config: Settings) => {
        await fetchModel();
        return { servings: [createEmbedder(config)] };
      },
    }),
    // #region protocol
    InferenceProtocolModule.forRootAsync({
      inject: [settings.KEY],
      useFactory: (config: Settings) => ({
        servings: [
          {
            serving: 'embedder',
            inputs: { text: 'BYTES' },
            outputs: { vector: 'FP32[384]' },
          },
        ],
        guards: [ApiKeyGuard],
        tenant: tenantOf,
        grpc: { port: config.grpcPort },
      }),
    }),
    // #endregion
    ServingBoardModule.forRoot({
      path: 'operator/servings',
      guards: [BoardGuard],
      changes: { guards: [BoardGuard] },
    }),
    ServingOpenTelemetryModule,
  ],
  controllers: [TicketsController, RolloutController, HealthController],
  providers: [
    ClassifierService,
    RolloutService,
    ServingHealthIndicator,
    { provide: APP_FILTER, useClass: RefusalFilter },
  ],
})
export class AppModule {}
