import { InvalidServingError } from '../errors.js';
import { formatValue } from '../format.js';
import { FunctionPartition } from './function.partition.js';
import { HandlerPartition, type ServingHandler, type ServingKind } from './handler.partition.js';
import type { Fetching } from './onnx/download/fetching.js';
import { BlockingWatch } from './onnx/blocking-watch.js';
import { type ModelPlace, ModelSource } from './onnx/model-content.js';
import type { DeclaredPorts, ModelSignature } from './onnx/model-signature.js';
import { SharedModel } from './onnx/shared-model.js';
import { ModelPartition } from './model.partition.js';
import type { Partition } from './partition.js';
import { SupervisedPartition, type Supervision } from './worker/supervised.partition.js';
import { type Isolation, WorkerPartition } from './worker/worker.partition.js';
import type { ModelTask, SessionProviders, WorkerTask } from './worker/worker-protocol.js';
import type { BatchFunctionFactory, PartitionOptions } from './batch-function.js';

/** The partitions of a serving, open. */
export interface OpenedEngine {
  readonly partitions: readonly Partition[];
  /** Only for a model. */
  readonly signature?: ModelSignature | undefined;
  /** The execution providers of each partition; only for a model. */
  readonly providers?: readonly (SessionProviders | undefined)[];
  /**
   * Callers get what a batch function throws as it is, and not as the cause of a BatchFailedError.
   */
  readonly throwsAsIs?: boolean;
}

/**
 * Opens the partitions of a serving: one per entry of options, ready for batches of these keys.
 * Batches of other keys are possible too; their functions are built on first use.
 */
export type Engine = (
  kind: ServingKind,
  partitions: readonly PartitionOptions[],
  keys: readonly string[],
  supervision: Supervision,
  /** Ends workers that load. */
  end: AbortSignal,
  surroundings: Surroundings,
) => Promise<OpenedEngine>;

/** The serving around an engine. */
export interface Surroundings extends Fetching {
  /** Logs a warning; the line continues "Serving ...". */
  readonly warn: (line: string) => void;
}

/** Batch functions in the application's own thread. */
export function functionEngine(factory: BatchFunctionFactory): Engine {
  return async (_kind, options, keys) => ({
    partitions: await Promise.all(
      options.map(async (own, index) => {
        const partition = new FunctionPartition(
          factory as BatchFunctionFactory<unknown>,
          index,
          own,
        );
        await partition.declare(keys);
        return partition;
      }),
    ),
  });
}

/** A handler of its own state: initialised once, for `run` when the first batch comes. */
export function handlerEngine(handlerOf: () => ServingHandler): Engine {
  let known: ServingHandler | undefined;
  let initialised: Promise<void> | undefined;
  return async (kind, options, keys) => {
    const handler = (known ??= checked(handlerOf()));
    const init = async (batchKeys: readonly string[]): Promise<void> =>
      handler.init(
        kind,
        options.map((own) => ({ ...own, batchKeys })),
      );
    if (kind === 'batched') {
      await (initialised = init(keys));
    }
    const handlerFor = async (key: string): Promise<ServingHandler> => {
      initialised ??= init([key]);
      // Does not cache a failure.
      await initialised.catch((error: unknown) => {
        initialised = undefined;
        throw error;
      });
      return handler;
    };
    return { partitions: options.map((_, index) => new HandlerPartition(handlerFor, index)) };
  };
}

/** @throws InvalidServingError for a class or provider without the methods of a handler */
function checked(handler: ServingHandler): ServingHandler {
  const given: Partial<ServingHandler> | null | undefined = handler;
  const missing = (['init', 'handleBatch'] as const).filter(
    (method) => typeof given?.[method] !== 'function',
  );
  if (missing.length > 0) {
    throw new InvalidServingError(
      `${given?.constructor?.name ?? formatValue(given)} cannot run batches: it has no method ` +
        `${missing.join(' and no method ')}; ` +
        'a class serving needs init(kind, partitions) and handleBatch(batch, partition)',
    );
  }
  return handler;
}

/** Opens the sessions of a model. */
type OpenModel = (
  tasks: readonly ModelTask[],
  supervision: Supervision,
  end: AbortSignal,
  surroundings: Surroundings,
) => Promise<OpenedEngine>;

/** Sessions of one model: its file is read once, for all sessions and restarts. */
export function modelEngine(model: ModelPlace, ports: DeclaredPorts, open: OpenModel): Engine {
  const source = new ModelSource(model);
  let isOpen = false;
  return async (_kind, options, keys, supervision, end, surroundings) => {
    try {
      const content = await source.read(surroundings);
      const tasks = options.map((own, partition) => ({
        partition,
        keys,
        options: own,
        model: content,
        ...ports,
      }));
      const opened = await whileLoading(open(tasks, supervision, end, surroundings));
      isOpen = true;
      return opened;
    } catch (error) {
      if (!isOpen) {
        source.forget();
      }
      throw error;
    }
  };
}

/** Each session in a thread or process of its own. */
export function inWorkers(isolation: Isolation): OpenModel {
  return (tasks, supervision, end) => openWorkers(tasks, isolation, supervision, end);
}

/** One session in the application's own thread, also for `run`: its runs cannot overlap anyway. */
export function onMainThread(blockingLimit: number): OpenModel {
  const shared = new SharedModel();
  return async ([task], _supervision, _end, { warn }) => {
    const model = await shared.acquire(async () => {
      const { openModel } = await import('./onnx/onnx-model.js');
      const watch = new BlockingWatch(blockingLimit, warn);
      return openModel(task!, (rows, milliseconds) => watch.observe(rows, milliseconds));
    });
    const { signature, providers } = model.loaded;
    const partition = new ModelPartition(model, () => shared.release());
    return { partitions: [partition], signature, providers: [providers] };
  };
}

/** The models of the whole process that are loading. */
const loading = new Set<Promise<OpenedEngine>>();

function whileLoading(opening: Promise<OpenedEngine>): Promise<OpenedEngine> {
  loading.add(opening);
  return opening.finally(() => loading.delete(opening));
}

/** Resolves when no model is loading: an exit meanwhile aborts the process, without its code. */
export async function modelsLoaded(): Promise<void> {
  await Promise.allSettled(loading);
}

export function fileEngine(file: string, isolation: Isolation): Engine {
  return (_kind, options, keys, supervision, end) =>
    openWorkers(
      options.map((own, partition) => ({ partition, keys, options: own, file })),
      isolation,
      supervision,
      end,
    );
}

/** Opens all workers at once; if one fails to load, the others end too. */
async function openWorkers(
  tasks: readonly WorkerTask[],
  isolation: Isolation,
  supervision: Supervision,
  end?: AbortSignal,
): Promise<OpenedEngine> {
  // The signal may abort after loading too; workers that are loaded end in another way.
  const halt = new AbortController();
  const abort = (): void => halt.abort();
  end?.addEventListener('abort', abort);
  const openings = await Promise.allSettled(
    tasks.map((task) => WorkerPartition.open(task, isolation, halt.signal)),
  );
  end?.removeEventListener('abort', abort);
  const failed = openings.find((opening) => opening.status === 'rejected');
  const workers = openings.flatMap((opening) =>
    opening.status === 'fulfilled' ? [opening.value] : [],
  );
  if (failed) {
    await Promise.all(workers.map((worker) => worker.close()));
    throw failed.reason;
  }
  const partitions = workers.map((worker, index) => {
    const open = (signal: AbortSignal) => WorkerPartition.open(tasks[index]!, isolation, signal);
    return new SupervisedPartition(index, worker, open, supervision);
  });
  return {
    partitions,
    signature: workers[0]?.loaded.signature,
    providers: workers.map(({ loaded }) => loaded.providers),
  };
}
