import type { BatchFunction, BatchFunctionContext, PartitionOptions } from './batch-function.js';
import { FunctionPartition } from './function.partition.js';
import { SequencePartition } from './sequence/sequence.partition.js';
import type { AnySequenceModel, SequenceLimits } from './sequence/sequence-model.js';

/** What runs rows: in batches, or in a serving of sequences step by step. */
type Runner = BatchFunction | AnySequenceModel;

/**
 * Builds the batch function or the sequence model of one partition and key; called once for each
 * when the serving starts.
 */
export type RunnerFactory = (site: BatchFunctionContext) => Runner | Promise<Runner>;

/** A partition in this thread, with what the factory builds for the declared keys. */
export async function openFactory(
  factory: RunnerFactory,
  index: number,
  options: PartitionOptions,
  keys: readonly string[],
  sequence: SequenceLimits | undefined,
): Promise<FunctionPartition | SequencePartition> {
  const partition = sequence
    ? new SequencePartition(factory, index, options, sequence)
    : new FunctionPartition(factory, index, options);
  await partition.declare(keys);
  return partition;
}
