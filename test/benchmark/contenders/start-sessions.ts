import { once } from 'node:events';
import { isMainThread, parentPort, Worker } from 'node:worker_threads';
import { mlp } from '../models/mlp.js';
import { session } from '../models/model.js';

if (isMainThread) {
  const threads = Array.from(
    { length: Number(process.argv[2]) },
    () => new Worker(new URL(import.meta.url)),
  );
  await Promise.all(threads.map((thread) => once(thread, 'message')));
  console.log(process.uptime() * 1000);
  process.exit();
} else {
  const { InferenceSession } = await import('onnxruntime-node');
  await InferenceSession.create(mlp.path, session);
  parentPort!.postMessage('ready');
}
