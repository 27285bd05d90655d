import { BatchFunctions } from './batch-functions.js';
import { FunctionPartition } from './function.partition.js';
import { HandlerPartition, type ServingHandler, type ServingKind } from './handler.partition.js';
import type { DeclaredAxes, ModelSignature } from './model-signature.js';
import type { BatchFunctionFactory, Partition, PartitionOptions } from './partition.js';
import { ThreadPartition } from './thread.partition.js';
import type { ThreadTask } from './thread-protocol.js';
import { webgpuTurn } from './webgpu-turn.js';

/** What an engine has opened. */
export interface Opened {
  readonly partitions: readonly Partition[];
  /** What the model says of itself, where there is one. */
  readonly signature?: ModelSignature | undefined;
}

/** Opens the partitions of a serving: one per entry of options. */
export type Engine = (kind: ServingKind, partitions: readonly PartitionOptions[]) => Promise<Opened>;

/** Batch functions in the application's own thread. */
export function functionEngine(factory: BatchFunctionFactory, keys: readonly string[]): Engine {
  return async (_kind, options) => ({
    partitions: await Promise.all(
      options.map(async (own, index) => {
        const functions = await BatchFunctions.build(factory as BatchFunctionFactory<unknown>, index, keys, own);
        return new FunctionPartition(functions, index);
      }),
    ),
  });
}

/** A handler with state of its own: initialised once, however it is then called. */
export function handlerEngine(handlerOf: () => ServingHandler): Engine {
  let initialised = false;
  return async (kind, options) => {
    const handler = handlerOf();
    if (!initialised || kind === 'process') {
      initialised = true;
      await handler.init(kind, options);
    }
    return { partitions: options.map((_, index) => new HandlerPartition(handler, index)) };
  };
}

export function modelEngine(
  model: string | Uint8Array,
  keys: readonly string[],
  axes: { readonly inputs: DeclaredAxes; readonly outputs: DeclaredAxes },
): Engine {
  return (_kind, options) => {
    const opening = openThreads(options.map((own, partition) => ({ partition, keys, options: own, model, ...axes, webgpuTurn })));
    loading.add(opening);
    return opening.finally(() => loading.delete(opening));
  };
}

/** The models that load now, of the whole process. */
const loading = new Set<Promise<Opened>>();

/** Resolves when no model loads any more: a process that ends in the middle of one is aborted, and not with its own exit code. */
export async function modelsLoaded(): Promise<void> {
  await Promise.allSettled(loading);
}

export function fileEngine(file: string, keys: readonly string[]): Engine {
  return (_kind, options) => openThreads(options.map((own, partition) => ({ partition, keys, options: own, file })));
}

/** All threads at once; when one fails to load, the others end too. */
async function openThreads(tasks: readonly ThreadTask[]): Promise<Opened> {
  const openings = await Promise.allSettled(tasks.map((task) => ThreadPartition.open(task)));
  const failed = openings.find((opening) => opening.status === 'rejected');
  const partitions = openings.flatMap((opening) => (opening.status === 'fulfilled' ? [opening.value] : []));
  if (failed) {
    await Promise.all(partitions.map((partition) => partition.close()));
    throw failed.reason;
  }
  for (const partition of partitions) {
    partition.siblings = partitions;
  }
  return { partitions, signature: partitions[0]?.signature };
}
