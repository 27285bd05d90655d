import { parentPort, workerData } from 'node:worker_threads';
import { WorkerHost } from './worker-host.js';
import type { WorkerTask } from './worker-protocol.js';

const port = parentPort!;

await new WorkerHost(workerData as WorkerTask, {
  listen: (hear) => void port.on('message', hear),
  post: (message, transfer) => port.postMessage(message, transfer),
  begin: () => {},
}).run();
// Ends the thread also where the module left a timer or a connection open; no native run is under way here.
process.exit();
