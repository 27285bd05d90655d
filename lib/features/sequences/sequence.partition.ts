import type { Batch } from '../../core/batch/batch.js';
import { FlatContainer, type FlatRows } from '../../core/batch/container.js';
import { FunctionCalls } from '../../core/context/call-cycles.js';
import { InvalidServingError } from '../../core/errors.js';
import { formatValue } from '../../core/format.js';
import type {
  BatchFunctionContext,
  BatchInfo,
  BatchListener,
  PartitionOptions,
} from '../../core/partitions/batch-function.js';
import {
  type FactoryPartition,
  loadForBatch,
  PerKey,
} from '../../core/partitions/function.partition.js';
import { type Partition, STEPPED } from '../../core/partitions/partition.js';
import { SequenceLoop } from './sequence-loop.js';
import type { SequenceLimits, SequenceModel } from './sequence-model.js';

interface Runner {
  readonly model: SequenceModel<unknown, unknown, unknown>;
  readonly loop: SequenceLoop;
}

/**
 * Each batch is one row, which joins the running rows if a place is free. Each key steps by itself,
 * unless `maxCost` limits all keys' rows: then they share a loop.
 */
export class SequencePartition implements FactoryPartition {
  readonly prefetch = 0;
  readonly capacity: number;
  readonly reports: string;
  private readonly runners: PerKey<Runner>;
  private readonly shared: SequenceLoop | undefined;
  private readonly calls = new FunctionCalls();

  constructor(
    private readonly factory: (site: BatchFunctionContext) => unknown,
    private readonly index: number,
    private readonly options: PartitionOptions,
    private readonly limits: SequenceLimits,
  ) {
    this.capacity = limits.capacity;
    this.reports = limits.reports;
    this.shared = limits.maxCost < Infinity ? new SequenceLoop(limits) : undefined;
    this.runners = new PerKey((key) => this.build(key));
  }

  declare(keys: readonly string[]): Promise<void> {
    return this.runners.declare(keys);
  }

  run(batch: Batch, info: BatchInfo, listener: BatchListener): Promise<typeof STEPPED> {
    return this.runRows(batch.gather(), info, listener);
  }

  async runRows(
    rows: FlatRows,
    { key }: BatchInfo,
    listener: BatchListener,
  ): Promise<typeof STEPPED> {
    const { runners } = this;
    const { model, loop } = runners.known(key) ?? (await loadForBatch(() => runners.get(key)));
    const row = {
      input: rows instanceof FlatContainer ? rows.toContainer() : rows[0],
      isWaiting: () => listener.isWaiting(0),
      emit: (value: unknown) => listener.step([value], undefined),
      hooks: listener.hooks,
      hook: (name: string, value: unknown) => listener.hook(name, [value]),
      room: () => (listener.isWaiting(0) ? listener.room?.() : undefined),
    };
    await this.calls.run(listener.caller?.(), () => loop.run(model, row));
    return STEPPED;
  }

  /** No caller waits for a warm-up's rows, yet each runs for one step. */
  async warmUp(warm: (runner: Partition) => Promise<void>): Promise<void> {
    await warm({
      prefetch: 0,
      run: (batch, info, listener) => this.run(batch, info, new FirstStep(listener)),
      close: () => Promise.resolve(),
    });
  }

  async close(): Promise<void> {
    this.calls.end();
  }

  private async build(key: string): Promise<Runner> {
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
    const model = given as SequenceModel<unknown, unknown, unknown>;
    return { model, loop: this.shared ?? new SequenceLoop(limits) };
  }
}

function needsCost({ maxCost, joinCost }: SequenceLimits): boolean {
  return maxCost < Infinity || joinCost < Infinity;
}

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
