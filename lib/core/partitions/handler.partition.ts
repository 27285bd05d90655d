import type { Batch } from '../batch/batch.js';
import { InvalidOutputError } from '../errors.js';
import { formatValue } from '../format.js';
import { loadForBatch, resultOf, settleResult } from './function.partition.js';
import { inSessions, SessionStates } from './session-states.js';
import { type Partition, type PartitionResult, STEPPED } from './partition.js';
import type { AnySequenceModel } from './sequence/sequence-model.js';
import type {
  BatchContext,
  BatchInfo,
  BatchResult,
  PartitionOptions,
  BatchListener,
} from './batch-function.js';

/** Which calls a partition serves: `inline` is `run()`, `batched` is `batchedRun()`. */
export type ServingKind = 'inline' | 'batched';

/** Options and keys of a partition that runs a class. */
export type HandlerPartitionOptions = PartitionOptions & {
  /** Its batches' keys; for `run` the first batch's key, and others may follow. */
  readonly batchKeys: readonly string[];
};

/** The result of {@link ServingHandler.handleBatch}, or a generator that yields a list per step. */
export type HandlerResult<Output = unknown> =
  | BatchResult<Output>
  | Promise<BatchResult<Output>>
  | AsyncGenerator<Output, void>
  | Generator<Output, void>;

/** A serving as a Nest provider: loads once, then runs every batch. */
export interface ServingHandler<Output = unknown> {
  /** Loads and compiles before the first batch; `partitions` has each partition's options. */
  init(kind: ServingKind, partitions: readonly HandlerPartitionOptions[]): void | Promise<void>;
  /** Runs one batch on the partition of that index; `batch.consume()` gives its rows. */
  handleBatch(batch: Batch, partition: number, context: BatchContext): HandlerResult<Output>;
}

/** A sequence model as a Nest provider: one object for all partitions and keys. */
export interface SequenceHandler extends AnySequenceModel {
  /** Loads before the first row; `partitions` has each partition's options. */
  init?(kind: ServingKind, partitions: readonly HandlerPartitionOptions[]): void | Promise<void>;
}

export class HandlerPartition implements Partition {
  readonly prefetch = 0;
  private readonly states = new SessionStates<unknown>();

  constructor(
    private readonly handlerFor: (key: string) => Promise<ServingHandler>,
    private readonly index: number,
  ) {}

  async run(
    batch: Batch,
    info: BatchInfo,
    listener: BatchListener,
  ): Promise<PartitionResult | typeof STEPPED> {
    const handler = await loadForBatch(() => this.handlerFor(info.key));
    return inSessions(this.states, info, listener, async (context) => {
      const handled = handler.handleBatch(batch, this.index, context);
      const result = await resultOf(handled, info.size, listener);
      return result === STEPPED ? result : settleResult(checked(result.output, handler));
    });
  }

  endSessions(ids: readonly number[]): void {
    this.states.end(ids);
  }

  async close(): Promise<void> {}
}

function checked(result: unknown, handler: ServingHandler): BatchResult {
  if (typeof result !== 'object' || result === null || !('output' in result)) {
    throw new InvalidOutputError(
      `${handler.constructor.name}.handleBatch must return { output, metadata? }, it returned ` +
        formatValue(result),
    );
  }
  const { output, metadata } = result as BatchResult;
  return { output, metadata };
}
