import { setImmediate as nextTurn } from 'node:timers/promises';
import { countOfRows } from '../format.js';
import type { Engine, OpenedEngine } from './engine.js';
import type { Fetching } from './onnx/remote-models.js';
import type { DeclaredPorts } from './onnx/model-signature.js';
import { hashOf } from './onnx/model-content.js';
import { type ModelPlace, ModelSource } from './onnx/model-source.js';
import { openWorkers, type Supervision } from './worker/supervised.partition.js';
import type { Isolation } from './worker/worker.partition.js';
import type { ModelTask } from './worker/worker-protocol.js';
import type { Batch } from '../batch/batch.js';
import type { BatchInfo, BatchListener } from './batch-function.js';
import { feedsOf } from './onnx/model-io.js';
import type { OnnxModel } from './onnx/onnx-model.js';
import type { Partition, PartitionResult, PartitionStatus } from './partition.js';

type OpenModel = (
  tasks: readonly ModelTask[],
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
      const tasks = options.map((own, partition) => ({
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

export function inWorkers(isolation: Isolation): OpenModel {
  return (tasks, supervision, end) => openWorkers(tasks, isolation, supervision, end);
}

/** One session: runs in the application's own thread can't overlap anyway. */
export function onMainThread(blockingLimit: number): OpenModel {
  return async ([task], _supervision, _end, { warn }) => {
    const { openModel } = await import('./onnx/onnx-model.js');
    const watch = new BlockingWatch(blockingLimit, warn);
    const model = await openModel(task!, (rows, milliseconds) => watch.observe(rows, milliseconds));
    const { signature, providers } = model.loaded;
    return { partitions: [new ModelPartition(model)], signature, providers: [providers] };
  };
}

const loading = new Set<Promise<unknown>>();

/** Marks a model's load or first runs. */
export function whileLoading<T>(work: Promise<T>): Promise<T> {
  loading.add(work);
  return work.finally(() => loading.delete(work));
}

/** Resolves when no model loads or warms up: an exit meanwhile aborts the process, without its code. */
export async function modelsLoaded(): Promise<void> {
  while (loading.size > 0) {
    await Promise.allSettled(loading);
    // A loaded model begins its first runs in this turn.
    await nextTurn();
  }
}

class ModelPartition implements Partition {
  readonly prefetch = 0;

  constructor(private readonly model: OnnxModel) {}

  get status(): PartitionStatus {
    return { state: 'up', restarts: 0, provider: this.model.loaded.providers.inUse };
  }

  async run(
    batch: Batch,
    { hooks, turns }: BatchInfo,
    listener: BatchListener,
  ): Promise<PartitionResult> {
    const { model } = this;
    const feeds = feedsOf(batch.gather(), model.loaded.signature.inputs);
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

/** Consecutive slow runs before the warning: a single one may be a pause of the machine. */
const SLOW_RUNS = 3;

export class BlockingWatch {
  private slowRuns = 0;
  private hasWarned = false;

  constructor(
    /** Milliseconds. */
    private readonly limit: number,
    /** Logs the warning; the line continues "Serving ...". */
    private readonly warn: (line: string) => void,
  ) {}

  observe(rows: number, milliseconds: number): void {
    this.slowRuns = milliseconds > this.limit ? this.slowRuns + 1 : 0;
    if (this.slowRuns === SLOW_RUNS && !this.hasWarned) {
      this.hasWarned = true;
      this.warn(
        `held the event loop for ${milliseconds.toFixed(1)} ms with a run of ${countOfRows(rows)}: the ` +
          `third run in a row above blockingLimit, which is ${this.limit} ms. Nothing else of the ` +
          "application runs meanwhile; use isolation: 'thread', lower batchSize, or raise " +
          'blockingLimit',
      );
    }
  }
}
