import { parentPort, workerData } from 'node:worker_threads';
import { BatchClaims } from '../core/partitions/worker/thread-channel.js';
import { marked, ownOnly, type WorkerTask } from '../core/partitions/worker/worker-protocol.js';
import { WorkerHost } from '../core/partitions/worker/worker-host.js';
import { openers } from './openers.js';

// CommonJS bundles have no top-level await. A rejection ends the thread.
void host();

async function host(): Promise<void> {
  const port = parentPort!;
  const { task, claims: memory } = workerData as {
    readonly task: WorkerTask;
    readonly claims: SharedArrayBuffer;
  };
  const claims = new BatchClaims(memory);

  await new WorkerHost(
    task,
    {
      // Only rows can hold unreadable values.
      listen: (onRequest) =>
        void port
          .on('message', ownOnly(onRequest))
          .on('messageerror', (unreadable) => onRequest({ unreadable })),
      post: (message, transfer, spare = []) =>
        spare.length > 0
          ? port.postMessage(marked({ ...message, spare }), [...transfer, ...spare])
          : port.postMessage(marked(message), transfer),
      begin: (batch) => claims.tryBegin(batch),
      // Called in a turn of the event loop, so not during a native run.
      exit: () => process.exit(),
    },
    openers,
  ).run();
  // The module may have left a timer or connection open. No native run is in progress.
  process.exit();
}
