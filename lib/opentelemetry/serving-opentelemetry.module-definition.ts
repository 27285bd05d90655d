import { ConfigurableModuleBuilder } from '@nestjs/common';
import type { ServingOpenTelemetryOptions } from './observe-with-opentelemetry.js';

export const { ConfigurableModuleClass, MODULE_OPTIONS_TOKEN: SERVING_OPENTELEMETRY_OPTIONS } =
  new ConfigurableModuleBuilder<ServingOpenTelemetryOptions>({ moduleName: 'ServingOpenTelemetry' })
    .setClassMethodName('forRoot')
    .build();
