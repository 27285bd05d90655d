import type { Batch } from '../batch/batch.js';
import { InvalidOutputError } from '../errors.js';
import { show } from '../show.js';
import type { BatchResult, Partition, PartitionOptions } from './partition.js';

/** `inline`: the partition serves `run()`; `process`: it serves `batchedRun()`. As in Nx.Serving. */
export type ServingKind = 'inline' | 'process';

/** A serving as a Nest provider: loads once, then runs every batch. */
export interface ServingHandler<Output = unknown> {
  /** Loads and compiles, before the first batch; `partitions` has one entry of options per partition. */
  init(kind: ServingKind, partitions: readonly PartitionOptions[]): void | Promise<void>;
  /** Runs one batch on the partition of that index; `batch.consume()` gives its rows. */
  handleBatch(batch: Batch, partition: number): BatchResult<Output> | Promise<BatchResult<Output>>;
}

/** One of the partitions that a handler serves. */
export class HandlerPartition implements Partition {
  readonly prefetch = 0;

  constructor(
    private readonly handler: ServingHandler,
    private readonly index: number,
  ) {}

  async run(batch: Batch): Promise<BatchResult> {
    const result: unknown = await this.handler.handleBatch(batch, this.index);
    if (typeof result !== 'object' || result === null || !('output' in result)) {
      throw new InvalidOutputError(
        `${this.handler.constructor.name}.handleBatch must return { output, metadata? }, it returned ${show(result)}`,
      );
    }
    return result as BatchResult;
  }

  async close(): Promise<void> {}
}
