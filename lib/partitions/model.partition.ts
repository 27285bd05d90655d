import type { Batch } from '../batch/batch.js';
import type { BatchInfo, BatchListener } from './batch-function.js';
import { feedsOf } from './onnx/model-ports.js';
import type { OnnxModel } from './onnx/onnx-model.js';
import type { Partition, PartitionResult, PartitionStatus } from './partition.js';

/** An ONNX model in the application's own thread, whose event loop each run holds. */
export class ModelPartition implements Partition {
  readonly prefetch = 0;

  constructor(
    private readonly model: OnnxModel,
    private readonly release: () => Promise<void>,
  ) {}

  get status(): PartitionStatus {
    return { state: 'up', restarts: 0, provider: this.model.loaded.providers.inUse };
  }

  async run(
    batch: Batch,
    { hooks, sessions }: BatchInfo,
    listener: BatchListener,
  ): Promise<PartitionResult> {
    const { model } = this;
    const feeds = feedsOf(batch.gather(), model.loaded.signature.inputs);
    const onHook = (name: string, value: unknown): void => listener.hook(name, value);
    const reply = await model.run(feeds, hooks, onHook, sessions);
    return { output: model.reply.of(reply), own: true };
  }

  endSessions(ids: readonly number[]): void {
    this.model.endSessions(ids);
  }

  close(): Promise<void> {
    return this.release();
  }
}
