import { Module } from '@nestjs/common';
import { ServingObserver } from './serving-observer.js';
import { ConfigurableModuleClass } from './serving-opentelemetry.module-definition.js';

/** Spans and metrics of all servings and `@Batched()` methods of the application; import it once, as it is or by `forRoot`. */
@Module({ providers: [ServingObserver] })
export class ServingOpenTelemetryModule extends ConfigurableModuleClass {}
