import { Worker } from 'node:worker_threads';
import {
  type Channel,
  type OnMessage,
  type WorkerExit,
  type WorkerRequest,
  type WorkerTask,
} from './worker-protocol.js';
import { entryScript } from './entry-script.js';
import { releaseTurnOf, webgpuTurn } from '../onnx/webgpu-turn.js';

/**
 * Starts a thread of this process. Buffers move to it without a copy.
 *
 * It cannot be killed: the end of a thread in a native run aborts the whole process.
 */
export function openThread(task: WorkerTask): Channel {
  const claims = new BatchClaims();
  const worker = new Worker(entryScript('thread'), {
    workerData: {
      task: 'model' in task ? { ...task, webgpuTurn } : task,
      claims: claims.memory,
    },
    name: `serving partition ${task.partition}`,
  });
  let onMessage: OnMessage | undefined;
  let cause: unknown;
  // A thread that has ended has no number.
  const { threadId } = worker;
  worker.once('exit', () => releaseTurnOf(threadId));
  worker.on('error', (error) => (cause = error));
  worker.on('message', (message) => onMessage?.(message));
  worker.on('messageerror', (unreadable) => onMessage?.({ unreadable }));
  return {
    name: 'thread',
    exited: new Promise<WorkerExit>((resolve) =>
      worker.once('exit', (code) => resolve({ code, cause })),
    ),
    listen: (listener) => (onMessage = listener),
    post: (request, transfer) => worker.postMessage(request, transfer),
    revoke: (sent, onRevoked) => onRevoked(claims.revoke(sent)),
    halt: () => worker.postMessage({ halt: true } satisfies WorkerRequest, []),
    ref: () => worker.ref(),
    unref: () => worker.unref(),
  };
}

/**
 * Decides whether a batch begins, between the thread that would run it and the thread that sent it:
 * a revoked batch never begins, and a batch that has begun is never revoked. The number of batches
 * that have begun or were revoked is in memory that both threads share.
 */
export class BatchClaims {
  private readonly begun: Int32Array;

  constructor(readonly memory = new SharedArrayBuffer(Int32Array.BYTES_PER_ELEMENT)) {
    this.begun = new Int32Array(memory);
  }

  /** Called by the worker for each batch in turn, counted from 0: whether it may begin. */
  tryBegin(batch: number): boolean {
    // The count has 32 bits, and overflows.
    return Atomics.compareExchange(this.begun, 0, batch, batch + 1) === (batch | 0);
  }

  /** Called by the sender: revokes what has not begun of the batches sent so far; their number. */
  revoke(sent: number): number {
    return (sent - Atomics.exchange(this.begun, 0, sent)) | 0;
  }
}
