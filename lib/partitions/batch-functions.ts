import { InvalidServingError } from '../errors.js';
import { lateLoad } from './late-load.js';
import { show } from '../show.js';
import {
  type BatchFunction,
  type BatchFunctionFactory,
  type BatchInfo,
  type BatchListener,
  type BatchResult,
  contextOf,
  type PartitionOptions,
  type STEPPED,
} from './partition.js';
import { resultOf } from './steps.js';

/**
 * Limit of the functions for keys that are not declared, which `run` takes. Beyond it the oldest is
 * dropped, and built anew when its key is used again.
 */
const OTHER_KEYS = 1024;

/** The batch functions of one partition, one for each key; built and called in the thread where this object lives. */
export class BatchFunctions {
  /** Of the keys that the serving declares, for as long as the partition lives. */
  private readonly declared = new Map<string, Promise<BatchFunction<unknown>>>();
  private readonly others = new Map<string, Promise<BatchFunction<unknown>>>();

  constructor(
    private readonly factory: BatchFunctionFactory<unknown>,
    private readonly partition: number,
    private readonly options: PartitionOptions,
  ) {}

  /** Builds the functions for the keys that the serving declares, one after the other. */
  async declare(keys: readonly string[]): Promise<void> {
    for (const key of keys) {
      const built = this.build(key);
      this.declared.set(key, built);
      await built;
    }
  }

  /** The function for the key, built when it is first asked for. */
  get(key: string): Promise<BatchFunction<unknown>> {
    const { declared, others } = this;
    const known = declared.get(key) ?? others.get(key);
    if (known) {
      return known;
    }
    if (others.size === OTHER_KEYS) {
      others.delete(others.keys().next().value!);
    }
    const built = this.build(key);
    others.set(key, built);
    // A later call tries again.
    built.catch(() => others.delete(key));
    return built;
  }

  async run(rows: unknown, info: BatchInfo, listener: BatchListener): Promise<BatchResult | typeof STEPPED> {
    const batchFunction = await lateLoad(() => this.get(info.key));
    return resultOf(batchFunction(rows, contextOf(info, listener)), info.size, listener) as Promise<BatchResult | typeof STEPPED>;
  }

  private async build(key: string): Promise<BatchFunction<unknown>> {
    const { partition, options } = this;
    const built: unknown = await this.factory({ key, partition, options });
    if (typeof built !== 'function') {
      throw new InvalidServingError(
        `The factory must return a function that runs a batch; for partition ${partition} and key "${key}" it returned ${show(built)}`,
      );
    }
    return built as BatchFunction<unknown>;
  }
}
