import { InvalidServingError } from '../errors.js';
import { formatValue } from '../format.js';
import { FunctionPartition } from './function.partition.js';
import { HandlerPartition, type ServingHandler, type ServingKind } from './handler.partition.js';
import type { Fetching } from './onnx/download/fetching.js';
import type { ModelSignature } from './onnx/model-signature.js';
import type { Partition } from './partition.js';
import { openWorkers } from './worker/open-workers.js';
import type { Supervision } from './worker/supervised.partition.js';
import type { Isolation } from './worker/worker.partition.js';
import type { SessionProviders } from './worker/worker-protocol.js';
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

/** Batch functions of a module file, each in a thread or process of its own. */
export function fileEngine(file: string, isolation: Isolation): Engine {
  return (_kind, options, keys, supervision, end) =>
    openWorkers(
      options.map((own, partition) => ({ partition, keys, options: own, file })),
      isolation,
      supervision,
      end,
    );
}
