import type { Batch } from '../../batch/batch.js';
import { FlatContainer, type FlatRows } from '../../batch/container.js';
import { InvalidServingError } from '../../errors.js';
import { formatValue } from '../../format.js';
import type {
  BatchFunctionContext,
  BatchInfo,
  BatchListener,
  PartitionOptions,
} from '../batch-function.js';
import { loadForBatch } from '../function.partition.js';
import { type Partition, STEPPED } from '../partition.js';
import { PerKey } from '../per-key.js';
import { SequenceLoop } from './sequence-loop.js';
import type { SequenceLimits, SequenceModel } from './sequence-model.js';

/**
 * Sequence models, one for each key, in the thread of this object. It runs as many batches at once
 * as it has places. Each batch is one row, which joins the rows that run already.
 */
export class SequencePartition implements Partition {
  readonly prefetch = 0;
  readonly places: number;
  private readonly loops: PerKey<SequenceLoop>;

  constructor(
    private readonly factory: (site: BatchFunctionContext) => unknown,
    private readonly index: number,
    private readonly options: PartitionOptions,
    private readonly limits: SequenceLimits,
  ) {
    this.places = limits.places;
    this.loops = new PerKey((key) => this.build(key));
  }

  /** Builds the models for the keys that the serving declares, one after the other. */
  declare(keys: readonly string[]): Promise<void> {
    return this.loops.declare(keys);
  }

  run(batch: Batch, info: BatchInfo, listener: BatchListener): Promise<typeof STEPPED> {
    return this.runRows(batch.gather(), info, listener);
  }

  async runRows(
    rows: FlatRows,
    { key }: BatchInfo,
    listener: BatchListener,
  ): Promise<typeof STEPPED> {
    const { loops } = this;
    const loop = loops.known(key) ?? (await loadForBatch(() => loops.get(key)));
    await loop.run({
      input: rows instanceof FlatContainer ? rows.toContainer() : rows[0],
      isWaiting: () => listener.isWaiting(0),
      emit: (value) => listener.step([value], undefined),
      hooks: listener.hooks,
      hook: (name, value) => listener.hook(name, [value]),
      room: () => (listener.isWaiting(0) ? listener.room?.() : undefined),
    });
    return STEPPED;
  }

  /** No caller waits for the rows of a warm-up. Each runs for one step all the same. */
  async warmUp(warm: (runner: Partition) => Promise<void>): Promise<void> {
    await warm({
      prefetch: 0,
      run: (batch, info, listener) => this.run(batch, info, new FirstStep(listener)),
      close: () => Promise.resolve(),
    });
  }

  async close(): Promise<void> {}

  private async build(key: string): Promise<SequenceLoop> {
    const { index: partition, options, limits } = this;
    const built: unknown = await this.factory({ key, partition, options });
    const given = built as Partial<SequenceModel<unknown, unknown, unknown>> | null | undefined;
    const methods = ['start', 'step', ...(needsCost(limits) ? (['cost'] as const) : [])] as const;
    const missing = methods.filter((method) => typeof given?.[method] !== 'function');
    if (missing.length > 0) {
      throw new InvalidServingError(
        `A sequence needs an object with ${methods.join(', ')}; for partition ${partition} and key ` +
          `"${key}" it got ${formatValue(built)}, without ${missing.join(', ')}`,
      );
    }
    return new SequenceLoop(given as SequenceModel<unknown, unknown, unknown>, limits);
  }
}

function needsCost({ maxCost, joinCost }: SequenceLimits): boolean {
  return maxCost < Infinity || joinCost < Infinity;
}

/** A listener that waits for the first step, and no longer. */
class FirstStep implements BatchListener {
  private hasStepped = false;

  constructor(private readonly listener: BatchListener) {}

  get hooks(): readonly string[] {
    return this.listener.hooks;
  }

  hook(): void {}

  step(output: unknown, metadata: unknown): void {
    this.hasStepped = true;
    this.listener.step(output, metadata);
  }

  isWaiting(): boolean {
    return !this.hasStepped;
  }
}
