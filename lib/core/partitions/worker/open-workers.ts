import type { ModelSignature } from '../onnx/model-signature.js';
import { SupervisedPartition, type Supervision } from './supervised.partition.js';
import { type Isolation, WorkerPartition } from './worker.partition.js';
import type { SessionProviders, WorkerTask } from './worker-protocol.js';

/** A serving's workers, and what they have loaded. */
interface OpenedWorkers {
  readonly partitions: readonly SupervisedPartition[];
  readonly signature: ModelSignature | undefined;
  readonly providers: readonly (SessionProviders | undefined)[];
}

/** Opens all workers in parallel; if one fails to load, the others end too. */
export async function openWorkers(
  tasks: readonly WorkerTask[],
  isolation: Isolation,
  supervision: Supervision,
  end?: AbortSignal,
): Promise<OpenedWorkers> {
  // `end` may also abort after loading; loaded workers end in another way.
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
