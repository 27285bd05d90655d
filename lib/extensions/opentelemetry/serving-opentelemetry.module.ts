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
import { ServingService } from '../../index.js';

const { ConfigurableModuleClass, MODULE_OPTIONS_TOKEN: SERVING_OPENTELEMETRY_OPTIONS } =
  new ConfigurableModuleBuilder<ServingOpenTelemetryOptions>({ moduleName: 'ServingOpenTelemetry' })
    .setClassMethodName('forRoot')
    .build();

/** Observes until the last batch at shutdown. */
@Injectable()
class ServingObserver implements OnModuleInit {
  constructor(
    private readonly moduleRef: ModuleRef,
    @Optional()
    @Inject(SERVING_OPENTELEMETRY_OPTIONS)
    private readonly options?: ServingOpenTelemetryOptions,
  ) {}

  onModuleInit(): void {
    // ServingModule need not be global.
    observeWithOpenTelemetry(this.moduleRef.get(ServingService, { strict: false }), this.options);
  }
}

/**
 * Spans and metrics of all servings and `@Batched()` methods. Import it once, directly or with
 * `forRoot`.
 */
@Module({ providers: [ServingObserver] })
export class ServingOpenTelemetryModule extends ConfigurableModuleClass {}
