import { Inject, Injectable, type OnModuleInit, Optional } from '@nestjs/common';
import { ModuleRef } from '@nestjs/core';
import { ServingService } from '../serving.service.js';
import { observeWithOpenTelemetry, type ServingOpenTelemetryOptions } from './observe-with-opentelemetry.js';
import { SERVING_OPENTELEMETRY_OPTIONS } from './serving-opentelemetry.module-definition.js';

/** Observes the servings of the application for as long as they live, through the batches that still run at shutdown. */
@Injectable()
export class ServingObserver implements OnModuleInit {
  constructor(
    private readonly moduleRef: ModuleRef,
    @Optional() @Inject(SERVING_OPENTELEMETRY_OPTIONS) private readonly options?: ServingOpenTelemetryOptions,
  ) {}

  onModuleInit(): void {
    // Looked up, since a ServingModule need not be global to be observed.
    observeWithOpenTelemetry(this.moduleRef.get(ServingService, { strict: false }), this.options);
  }
}
