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

/** With more keys than this the one that came first is forgotten, and built anew if it is asked for again: `run` takes any key. */
const KEYS_REMEMBERED = 1024;

/** The batch functions of one partition, one for each key; built and called in the thread where this object lives. */
export class BatchFunctions {
  private readonly byKey = new Map<string, Promise<BatchFunction<unknown>>>();

  constructor(
    private readonly factory: BatchFunctionFactory<unknown>,
    private readonly partition: number,
    private readonly options: PartitionOptions,
  ) {}

  /** The function for the key, built when it is first asked for. */
  get(key: string): Promise<BatchFunction<unknown>> {
    const known = this.byKey.get(key);
    if (known) {
      return known;
    }
    if (this.byKey.size === KEYS_REMEMBERED) {
      this.byKey.delete([...this.byKey.keys()][0]!);
    }
    const built = this.build(key);
    this.byKey.set(key, built);
    // A later call may have better luck.
    built.catch(() => this.byKey.delete(key));
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
