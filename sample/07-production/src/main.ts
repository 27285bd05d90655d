import { ConsoleLogger, ValidationPipe } from '@nestjs/common';
import { NestFactory } from '@nestjs/core';
import type { NestExpressApplication } from '@nestjs/platform-express';
import { metrics } from '@opentelemetry/api';
import { PrometheusExporter } from '@opentelemetry/exporter-prometheus';
import {
  defaultResource,
  detectResources,
  envDetector,
  resourceFromAttributes,
} from '@opentelemetry/resources';
import { MeterProvider } from '@opentelemetry/sdk-metrics';
import { AppModule } from './app.module.js';
import { serveDocument } from './document.js';

// #region resource
// The variables OTEL_SERVICE_NAME and OTEL_RESOURCE_ATTRIBUTES have precedence.
const resource = defaultResource()
  .merge(resourceFromAttributes({ 'service.name': 'ticket-desk' }))
  .merge(detectResources({ detectors: [envDetector] }));
// #endregion

// Serves /metrics on a port of its own, which the load balancer does not publish.
const exporter = new PrometheusExporter({ port: Number(process.env.METRICS_PORT ?? 9464) });
metrics.setGlobalMeterProvider(new MeterProvider({ resource, readers: [exporter] }));

const app = await NestFactory.create<NestExpressApplication>(AppModule, {
  logger: new ConsoleLogger({ json: true }),
});
app.useBodyParser('json', { limit: '3mb' });
app.useGlobalPipes(new ValidationPipe({ transform: true, whitelist: true }));
serveDocument(app);
// #region shutdown
// As process 1 of a container, Node ignores the signal that Nest raises again after its hooks.
app.enableShutdownHooks(['SIGTERM', 'SIGINT'], { useProcessExit: true });
// #endregion
await app.listen(process.env.PORT ?? 3000);
