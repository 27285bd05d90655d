export { ServingHealthIndicator } from './serving.health-indicator.js';
