import type { Batch } from '../batch/batch.js';
import type { BatchFunctions } from './batch-functions.js';
import type { BatchInfo, BatchListener, BatchResult, Partition, STEPPED } from './partition.js';

/** Runs batches in the application's own thread. */
export class FunctionPartition implements Partition {
  readonly prefetch = 0;

  constructor(private readonly functions: BatchFunctions) {}

  run(batch: Batch, info: BatchInfo, listener: BatchListener): Promise<BatchResult | typeof STEPPED> {
    return this.functions.run(batch.consume(), info, listener);
  }

  async close(): Promise<void> {}
}
