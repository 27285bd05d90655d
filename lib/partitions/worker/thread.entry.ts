import { parentPort, workerData } from 'node:worker_threads';
import { BatchClaims, type WorkerTask } from './worker-protocol.js';
import { WorkerHost } from './worker-host.js';

const port = parentPort!;
const { task, passed } = workerData as {
  readonly task: WorkerTask;
  readonly passed: SharedArrayBuffer;
};
const turnstile = new BatchClaims(passed);

await new WorkerHost(task, {
  // Of all that comes only rows can be anything.
  listen: (hear) =>
    void port.on('message', hear).on('messageerror', (unreadable) => hear({ unreadable })),
  post: (message, transfer) => port.postMessage(message, transfer),
  begin: (batch) => turnstile.tryBegin(batch),
  // The event loop turns, so no native run is under way.
  exit: () => process.exit(),
}).run();
// Ends the thread also where the module left a timer or a connection open; no native run is under
// way here.
process.exit();
