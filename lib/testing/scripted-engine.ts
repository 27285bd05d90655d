import type { Batch } from '../batch/batch.js';
import type { Engine } from '../partitions/engine.js';
import {
  type BatchContext,
  type BatchInfo,
  type BatchListener,
  type BatchResult,
  contextOf,
  type Partition,
  type STEPPED,
} from '../partitions/partition.js';
import { resultOf } from '../partitions/steps.js';

/** Runs the rows as a batch function does. `lose` ends the partition for good. */
export type Hold = (rows: unknown, context: BatchContext, lose: (error: Error) => void) => unknown;

/** Partitions that hand their batches over, and can be lost as a thread can. */
export function scriptedEngine(hold: Hold): Engine {
  return async (_kind, options) => ({ partitions: options.map(() => new ScriptedPartition(hold)) });
}

class ScriptedPartition implements Partition {
  readonly prefetch = 0;
  lost?: Error;

  constructor(private readonly hold: Hold) {}

  async run(batch: Batch, info: BatchInfo, listener: BatchListener): Promise<BatchResult | typeof STEPPED> {
    if (this.lost) {
      throw this.lost;
    }
    const result = this.hold(batch.consume(), contextOf(info, listener), (error) => (this.lost = error));
    return resultOf(result, info.size, listener) as Promise<BatchResult | typeof STEPPED>;
  }

  async close(): Promise<void> {}
}
