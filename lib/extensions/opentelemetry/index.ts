/**
 * Spans and metrics of servings, for OpenTelemetry.
 *
 * @module opentelemetry
 */

export {
  type ObservedServings,
  observeWithOpenTelemetry,
  type ServingOpenTelemetryOptions,
} from './observe-with-opentelemetry.js';
export { ServingOpenTelemetryModule } from './observe-with-opentelemetry.js';
