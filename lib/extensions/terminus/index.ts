/**
 * Readiness and liveness of servings, for the health checks of `@nestjs/terminus`.
 *
 * @module terminus
 */

export { ServingHealthIndicator } from './serving.health-indicator.js';
