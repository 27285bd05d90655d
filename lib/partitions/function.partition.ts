import type { Batch } from '../batch/batch.js';
import type { BatchFunctions } from './batch-functions.js';
import { type BatchResult, contextOf, type Partition } from './partition.js';

/** Runs batches in the application's own thread. */
export class FunctionPartition implements Partition {
  readonly prefetch = 0;

  constructor(
    private readonly functions: BatchFunctions,
    private readonly index: number,
  ) {}

  run(batch: Batch): Promise<BatchResult> {
    return this.functions.run(batch.consume(), contextOf(batch, this.index));
  }

  async close(): Promise<void> {}
}
