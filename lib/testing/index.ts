export { MemoryNetwork, type MemoryNetworkOptions, type MemoryTransport } from '../distribution/transports/memory.transport.js';
export { BatchScript } from './batch-script.js';
export type { HeldBatch } from './held-batch.js';
export { overrideServing, type ServingOverride } from './override-serving.js';
export { recordBatches } from './record-batches.js';
export type { ResultsOf, RowsOf, TypedBatchFunction } from './rows-of.js';
export { settle } from './settle.js';
export type { TestingBuilder } from './testing-builder.js';
export { VirtualTime } from './virtual-time.js';
