/**
 * Tests without a model: functions and scripts in place of batches, and virtual time.
 *
 * @module testing
 */

export { BatchScript } from './batch-script.js';
export type { HeldBatch } from './batch-script.js';
export { overrideServing, type ServingOverride } from './override-serving.js';
export { recordBatches } from './batch-script.js';
export { settle } from './virtual-time.js';
export { VirtualTime } from './virtual-time.js';
