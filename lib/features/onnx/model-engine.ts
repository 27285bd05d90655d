import { BlockingWatch } from '../../core/partitions/function.partition.js';
import { type Engine, type OpenedEngine, whileLoading } from '../../core/partitions/engine.js';
import type { Fetching, ModelPlace } from '../../core/partitions/model/remote-models.js';
import type { DeclaredPorts } from '../../core/partitions/model/model-signature.js';
import { contentForProcess, hashOf } from './model-content.js';
import { ModelSource } from './model-source.js';
import { releaseTurnOf, webgpuTurn } from './native-calls.js';
import {
  openWorkers,
  type Supervision,
} from '../../core/partitions/worker/supervised.partition.js';
import type { Isolation } from '../../core/partitions/worker/worker.partition.js';
import type { WorkerHooks } from '../../core/partitions/worker/worker-protocol.js';
import type { Batch } from '../../core/batch/batch.js';
import type { FlatRows } from '../../core/batch/container.js';
import type { Tensor } from '../../core/batch/tensor.js';
import type { BatchInfo, BatchListener } from '../../core/partitions/batch-function.js';
import { feedsOf } from '../../core/partitions/model/model-io.js';
import { type OnnxModel, type OnnxTask, openModel } from './onnx-model.js';
import type {
  Partition,
  PartitionResult,
  PartitionStatus,
} from '../../core/partitions/partition.js';

export type OpenModel = (
  tasks: readonly OnnxTask[],
  supervision: Supervision,
  end: AbortSignal,
  surroundings: Fetching,
) => Promise<OpenedEngine>;

/** Reads a model's file once, for all sessions and restarts. */
export function modelEngine(model: ModelPlace, ports: DeclaredPorts, open: OpenModel): Engine {
  const source = new ModelSource(model);
  let isOpen = false;
  return async (_kind, options, keys, supervision, end, surroundings) => {
    try {
      const { content, fetched = {} } = await source.load(surroundings);
      const name = content.files.size > 0 ? content.name : `a model ${content.name}`;
      const tasks = options.map((own, partition) => ({
        opener: 'onnx',
        name,
        partition,
        keys,
        options: own,
        model: content,
        ...ports,
      }));
      const opened = await whileLoading(open(tasks, supervision, end, surroundings));
      isOpen = true;
      return { ...opened, fetched, contentOf: () => hashOf(content) };
    } catch (error) {
      if (!isOpen) {
        source.forget();
      }
      throw error;
    }
  };
}

const workerHooks: WorkerHooks = {
  async forProcess(task) {
    const { model } = task as OnnxTask;
    return { ...task, model: await contentForProcess(model) } as OnnxTask;
  },
  threadEnded: releaseTurnOf,
};

export function inWorkers(isolation: Isolation): OpenModel {
  return (tasks, supervision, end) =>
    openWorkers(
      isolation === 'thread' ? tasks.map((task) => ({ ...task, webgpuTurn })) : tasks,
      isolation,
      supervision,
      end,
      workerHooks,
    );
}

/** Runs in the application's own thread can't overlap, so there is one session. */
export function onMainThread(blockingLimit: number): OpenModel {
  return async ([task], _supervision, _end, { warn }) => {
    const watch = new BlockingWatch(
      { limit: blockingLimit, name: `blockingLimit, which is ${blockingLimit} ms` },
      "use isolation: 'thread', lower batchSize, or raise blockingLimit",
      warn,
    );
    const model = await openModel(task!, (rows, milliseconds) => watch.observe(rows, milliseconds));
    const { signature, providers } = model.loaded;
    return {
      partitions: [new ModelPartition(model)],
      where: "in the application's own thread",
      signature,
      providers: [providers],
    };
  };
}

export class ModelPartition implements Partition {
  readonly prefetch: number = 0;

  constructor(protected readonly model: OnnxModel) {}

  get status(): PartitionStatus {
    return { state: 'up', restarts: 0, provider: this.model.loaded.providers.inUse };
  }

  async run(batch: Batch, info: BatchInfo, listener: BatchListener): Promise<PartitionResult> {
    return this.runFeeds(this.feedsOf(batch.gather()), info, listener);
  }

  protected feedsOf(rows: FlatRows): Tensor[] {
    return feedsOf(rows, this.model.loaded.signature.inputs);
  }

  protected async runFeeds(
    feeds: readonly Tensor[],
    { hooks, turns }: BatchInfo,
    listener: BatchListener,
  ): Promise<PartitionResult> {
    const { model } = this;
    const onHook = (name: string, value: unknown): void => listener.hook(name, value);
    const reply = await model.run(feeds, hooks, onHook, turns);
    return { output: model.reply.of(reply), own: true };
  }

  forget(ids: readonly number[]): void {
    this.model.forget(ids);
  }

  close(): Promise<void> {
    return this.model.close();
  }
}
