import {
  Module,
  ConfigurableModuleBuilder,
  Inject,
  Injectable,
  type OnModuleInit,
  Optional,
} from '@nestjs/common';
import { ModuleRef } from '@nestjs/core';
import {
  type ServingOpenTelemetryOptions,
  observeWithOpenTelemetry,
} from './observe-with-opentelemetry.js';
import { ServingService } from '../serving.service.js';

const { ConfigurableModuleClass, MODULE_OPTIONS_TOKEN: SERVING_OPENTELEMETRY_OPTIONS } =
  new ConfigurableModuleBuilder<ServingOpenTelemetryOptions>({ moduleName: 'ServingOpenTelemetry' })
    .setClassMethodName('forRoot')
    .build();

/**
 * Observes the servings of the application for as long as they live, through the batches that still
 * run at shutdown.
 */
@Injectable()
class ServingObserver implements OnModuleInit {
  constructor(
    private readonly moduleRef: ModuleRef,
    @Optional()
    @Inject(SERVING_OPENTELEMETRY_OPTIONS)
    private readonly options?: ServingOpenTelemetryOptions,
  ) {}

  onModuleInit(): void {
    // Looked up, since a ServingModule need not be global to be observed.
    observeWithOpenTelemetry(this.moduleRef.get(ServingService, { strict: false }), this.options);
  }
}

/**
 * Spans and metrics of all servings and `@Batched()` methods of the application; import it once, as
 * it is or by `forRoot`.
 */
@Module({ providers: [ServingObserver] })
export class ServingOpenTelemetryModule extends ConfigurableModuleClass {}
