import { Worker } from 'node:worker_threads';
import {
  type Channel,
  type Ending,
  type OnMessage,
  BatchClaims,
  type WorkerRequest,
  type WorkerTask,
} from './worker-protocol.js';
import { threadUrl } from './entry-urls.js';
import { passOnFor, webgpuTurn } from '../onnx/webgpu-turn.js';

/**
 * Starts a thread of this process. Buffers move to it without being copied.
 *
 * It cannot be killed: ending a thread inside a native run aborts the whole process.
 */
export function openThread(task: WorkerTask): Channel {
  const turnstile = new BatchClaims();
  const worker = new Worker(threadUrl, {
    workerData: {
      task: 'model' in task ? { ...task, webgpuTurn } : task,
      passed: turnstile.memory,
    },
    name: `serving partition ${task.partition}`,
  });
  let hear: OnMessage | undefined;
  let cause: unknown;
  // Once it has ended it has no number.
  const { threadId } = worker;
  worker.once('exit', () => passOnFor(threadId));
  worker.on('error', (error) => (cause = error));
  worker.on('message', (message) => hear?.(message));
  worker.on('messageerror', (unreadable) => hear?.({ unreadable }));
  return {
    name: 'thread',
    ended: new Promise<Ending>((resolve) =>
      worker.once('exit', (code) => resolve({ code, cause })),
    ),
    listen: (listener) => (hear = listener),
    post: (request, transfer) => worker.postMessage(request, transfer),
    revoke: (given, tell) => tell(turnstile.revoke(given)),
    halt: () => worker.postMessage({ halt: true } satisfies WorkerRequest, []),
    ref: () => worker.ref(),
    unref: () => worker.unref(),
  };
}
