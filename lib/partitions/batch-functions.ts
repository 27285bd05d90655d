import { InvalidServingError } from '../errors.js';
import { show } from '../show.js';
import {
  type BatchContext,
  type BatchFunction,
  type BatchFunctionFactory,
  type BatchOutput,
  type BatchResult,
  type PartitionOptions,
  WithMetadata,
} from './partition.js';

/** The batch functions of one partition, one for each key; built and called in the thread where this object lives. */
export class BatchFunctions {
  private constructor(private readonly byKey: ReadonlyMap<string, BatchFunction<unknown>>) {}

  static async build(
    factory: BatchFunctionFactory<unknown>,
    partition: number,
    keys: readonly string[],
    options: PartitionOptions,
  ): Promise<BatchFunctions> {
    const byKey = new Map<string, BatchFunction<unknown>>();
    for (const key of keys) {
      const built: unknown = await factory({ key, partition, options });
      if (typeof built !== 'function') {
        throw new InvalidServingError(
          `The factory must return a function that runs a batch; for partition ${partition} and key "${key}" it returned ${show(built)}`,
        );
      }
      byKey.set(key, built as BatchFunction<unknown>);
    }
    return new BatchFunctions(byKey);
  }

  async run(rows: unknown, context: BatchContext): Promise<BatchResult> {
    const output = await this.byKey.get(context.key)!(rows, context);
    return output instanceof WithMetadata ? (output as BatchResult) : { output: output as BatchOutput };
  }
}
