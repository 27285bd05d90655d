import { setImmediate as nextTurn } from 'node:timers/promises';
import { fileURLToPath } from 'node:url';
import { InvalidOutputError, InvalidServingError } from '../errors.js';
import { formatValue } from '../format.js';
import type {
  FetchedFacts,
  FetchedFile,
  FetchedFiles,
  Fetching,
  RemoteFiles,
} from './model/remote-models.js';
import { digestOf } from './file-digest.js';
import type { ModelSignature } from './model/model-signature.js';
import { type Partition, type PartitionResult, STEPPED } from './partition.js';
import { openWorkers, type Supervision } from './worker/supervised.partition.js';
import type { Isolation } from './worker/worker.partition.js';
import type { SessionProviders, TensorModel } from './worker/worker-protocol.js';
import type {
  BatchContext,
  BatchFunction,
  BatchFunctionContext,
  BatchInfo,
  BatchListener,
  BatchResult,
  OtherModel,
  PartitionOptions,
} from './batch-function.js';
import {
  BlockingWatch,
  CodePartition,
  type FactoryPartition,
  FunctionPartition,
  loadForBatch,
  resultOf,
  settleResult,
} from './function.partition.js';
import type { Batch } from '../batch/batch.js';

export interface OpenedEngine {
  readonly partitions: readonly Partition[];
  /** Their place in the boot log, such as `2 threads`. */
  readonly where?: string;
  /** Only for a model. */
  readonly signature?: ModelSignature | undefined;
  /** Each partition's execution providers; only for a model. */
  readonly providers?: readonly (SessionProviders | undefined)[];
  /** What was fetched with the model or for the module, such as its facts. */
  readonly fetched?: FetchedFacts & Pick<Partial<FetchedFile>, 'accept'>;
  /** A hash of the model or module file. */
  readonly contentOf?: () => Promise<string>;
  /** Callers get a batch function's own error, without a BatchFailedError around it. */
  readonly throwsAsIs?: boolean;
  /** Called when all partitions are closed. */
  readonly closed?: () => Promise<void>;
}

export async function closeEngine({ partitions, closed }: OpenedEngine): Promise<void> {
  await Promise.all(partitions.map((partition) => partition.close()));
  await closed?.();
}

/**
 * Opens a serving's partitions, one per entry of options, for batches of these keys. Functions for
 * other keys are built on first use.
 */
export type Engine = (
  kind: ServingKind,
  partitions: readonly PartitionOptions[],
  keys: readonly string[],
  supervision: Supervision,
  end: AbortSignal,
  surroundings: Fetching,
) => Promise<OpenedEngine>;

/** A model that another program runs; an extension makes one, for example `endpoint()`. */
export interface ExternalModel {
  /** @throws InvalidServingError naming the serving */
  engineFor(serving: {
    readonly name: string;
    readonly rollout?: { readonly version?: string };
  }): ExternalEngine;
}

interface ExternalEngine {
  readonly engine: Engine;
  /** Options per partition; the other program runs as many batches at a time. */
  readonly partitions: readonly PartitionOptions[];
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

/** Runs in the application's own thread. */
export function functionEngine(factory: RunnerFactory, open: OpenPartition = functions): Engine {
  return async (_kind, options, keys, _supervision, _end, { warn }) => {
    const partitions = await Promise.all(
      options.map((own, index) => openFactory(open, factory, index, own, keys)),
    );
    return { partitions: watched(partitions, warn) };
  };
}

/** Milliseconds: a timer or a health check that is this late is noticed. */
const LONG = 50;

function watched(
  partitions: readonly Partition[],
  warn: (line: string) => void,
): readonly Partition[] {
  const remedy = 'move its work to a file (useFile), which a thread runs, or lower batchSize';
  const watch = new BlockingWatch({ limit: LONG, name: `${LONG} ms` }, remedy, warn);
  for (const partition of partitions) {
    if (partition instanceof CodePartition) {
      partition.watch = watch;
    }
  }
  return partitions;
}

export function handlerEngine(handlerOf: () => ServingHandler): Engine {
  const initialised = initialisedOnce(() => checked(handlerOf()));
  return async (kind, options, keys, _supervision, _end, { warn }) => {
    const handlerFor = await initialised(kind, options, keys);
    const partitions = options.map((_, index) => new HandlerPartition(handlerFor, index));
    return { partitions: watched(partitions, warn) };
  };
}

/** One object, whose states belong to partitions and keys. */
export function statefulEngine(handlerOf: () => OtherHandler, opener: OpenPartition): Engine {
  const initialised = initialisedOnce(handlerOf);
  return async (kind, options, keys) => {
    const modelFor = await initialised(kind, options, keys);
    const open = (own: PartitionOptions, index: number): Promise<Partition> =>
      openFactory(opener, ({ key }) => modelFor(key) as Promise<never>, index, own, keys);
    return { partitions: await Promise.all(options.map(open)) };
  };
}

/** The handler by key, after `init`: with the kind `inline`, for the first batch. */
type Initialised<Handler> = (
  kind: ServingKind,
  partitions: readonly PartitionOptions[],
  keys: readonly string[],
) => Promise<(key: string) => Promise<Handler>>;

function initialisedOnce<Handler extends OtherHandler>(
  handlerOf: () => Handler,
): Initialised<Handler> {
  let known: Handler | undefined;
  let initialised: Promise<void> | undefined;
  return async (kind, options, keys) => {
    const handler = (known ??= handlerOf());
    const init = async (batchKeys: readonly string[]): Promise<void> =>
      handler.init?.(
        kind,
        options.map((own) => ({ ...own, batchKeys })),
      );
    if (kind === 'batched') {
      await (initialised = init(keys));
    }
    return async (key) => {
      initialised ??= init([key]);
      // Does not cache a failure.
      await initialised.catch((error: unknown) => {
        initialised = undefined;
        throw error;
      });
      return handler;
    };
  };
}

/** @throws InvalidServingError if methods are missing */
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

/** Each partition has its own thread or process. */
export function fileEngine(
  file: string,
  isolation: Isolation,
  continuous?: ContinuousPlan,
  prepare: Preparation = async () => ({}),
): Engine {
  const fetch = typeof prepare === 'function' ? optionsBy(prepare) : onceFor(prepare);
  return async (_kind, options, keys, supervision, end, surroundings) => {
    const { options: prepared, share, ...fetched } = await fetch(surroundings);
    const shared = isolation === 'thread' ? await share?.(options) : undefined;
    const tasks = options.map((own, partition) => ({
      partition,
      keys,
      options: { ...own, ...prepared, ...shared?.options },
      file,
      continuous,
    }));
    const closed = async () => shared?.close();
    try {
      const opened = await openWorkers(tasks, isolation, supervision, end);
      return { ...opened, fetched, contentOf: () => digestOf(fileURLToPath(file)), closed };
    } catch (error) {
      await closed();
      throw error;
    }
  };
}

type Preparation =
  RemoteFiles | ((fetching: Fetching) => PartitionOptions | Promise<PartitionOptions>);

type FetchOptions = (fetching: Fetching) => Promise<FetchedFiles>;

function optionsBy(prepare: Exclude<Preparation, RemoteFiles>): FetchOptions {
  return async (fetching) => ({ options: await prepare(fetching) });
}

/** A version's partitions have the same facts, also those that `run` opens before its start. */
function onceFor(remote: RemoteFiles): FetchOptions {
  let fetched: Promise<FetchedFiles> | undefined;
  return (fetching) => {
    if (!fetched) {
      const forget = (): void => void (fetched = undefined);
      fetching.signal.addEventListener('abort', forget, { once: true });
      fetched = remote.fetch(fetching);
      fetched.catch(forget);
    }
    return fetched;
  };
}

type Runner = BatchFunction | OtherModel;

/** Called once per partition and key when the serving starts. */
export type RunnerFactory = (site: BatchFunctionContext) => Runner | Promise<Runner>;

/** Lets a feature batch a serving's rows continuously. Threads and processes get a copy. */
export interface ContinuousPlan {
  /** The name of its opener, and of what callers run. */
  readonly kind: string;
  /** Rows that each partition runs at the same time. */
  readonly capacity: number;
  /** The type of the events that each partition reports. */
  readonly reports: string;
}

/** The features' openers, in the application's thread and in others. */
export interface Openers {
  /** Partitions that batch continuously, by kind of plan. */
  readonly continuous: Readonly<
    Record<string, (plan: never, ...site: Parameters<OpenPartition>) => FactoryPartition>
  >;
  /** Models of workers' tasks. */
  readonly models: Readonly<Record<string, (task: never) => Promise<TensorModel>>>;
}

/** Makes a partition, in the application's thread or its own. */
export type OpenPartition = (
  factory: RunnerFactory,
  index: number,
  options: PartitionOptions,
) => FactoryPartition;

const functions: OpenPartition = (...site) => new FunctionPartition(...site);

export function openerOf(plan: ContinuousPlan | undefined, openers: Openers): OpenPartition {
  return plan ? (...site) => openers.continuous[plan.kind]!(plan as never, ...site) : functions;
}

export async function openFactory(
  open: OpenPartition,
  factory: RunnerFactory,
  index: number,
  options: PartitionOptions,
  keys: readonly string[],
): Promise<FactoryPartition> {
  const partition = open(factory, index, options);
  await partition.declare(keys);
  return partition;
}

/** `inline` for a serving that `run` opens before its start, otherwise `batched`. */
export type ServingKind = 'inline' | 'batched';

/** Options and keys of a partition that runs a class. */
export type HandlerPartitionOptions = PartitionOptions & {
  /** Its batches' keys; for the kind `inline` only the first batch's. */
  readonly batchKeys: readonly string[];
};

/** The result of {@link ServingHandler.handleBatch}, or a generator that yields a list per step. */
export type HandlerResult<Output = unknown> =
  | BatchResult<Output>
  | Promise<BatchResult<Output>>
  | AsyncGenerator<Output, void>
  | Generator<Output, void>;

/** A serving as a Nest provider: loads once, then runs every batch. */
export interface ServingHandler<Output = unknown> {
  /** Loads and compiles before the first batch; `partitions` has each partition's options. */
  init(kind: ServingKind, partitions: readonly HandlerPartitionOptions[]): void | Promise<void>;
  /** Runs one batch on the partition of that index; `batch.consume()` gives its rows. */
  handleBatch(batch: Batch, partition: number, context: BatchContext): HandlerResult<Output>;
}

/** A feature's model as a Nest provider: one object for all partitions and keys. */
export interface OtherHandler {
  /** Loads before the first row; `partitions` has each partition's options. */
  init?(kind: ServingKind, partitions: readonly HandlerPartitionOptions[]): void | Promise<void>;
}

class HandlerPartition extends CodePartition {
  constructor(
    private readonly handlerFor: (key: string) => Promise<ServingHandler>,
    private readonly index: number,
  ) {
    super();
  }

  async run(
    batch: Batch,
    info: BatchInfo,
    listener: BatchListener,
  ): Promise<PartitionResult | typeof STEPPED> {
    const handler = await loadForBatch(() => this.handlerFor(info.key));
    const settle = (result: PartitionResult | typeof STEPPED) =>
      result === STEPPED ? result : settleResult(resultIn(result.output, handler));
    return this.runCode(info, listener, (context) => {
      const handled = handler.handleBatch(batch, this.index, context);
      const result = resultOf(handled, info.size, listener);
      return result instanceof Promise ? result.then(settle) : settle(result);
    });
  }
}

function resultIn(result: unknown, handler: ServingHandler): BatchResult {
  if (typeof result !== 'object' || result === null || !('output' in result)) {
    throw new InvalidOutputError(
      `${handler.constructor.name}.handleBatch must return { output, metadata? }, it returned ` +
        formatValue(result),
    );
  }
  const { output, metadata } = result as BatchResult;
  return { output, metadata };
}
