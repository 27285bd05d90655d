import { Worker } from 'node:worker_threads';
import {
  type Channel,
  marked,
  type OnMessage,
  ownOnly,
  type WorkerExit,
  type WorkerHooks,
  type WorkerRequest,
  type WorkerTask,
} from './worker-protocol.js';
import { entryScript } from './entry-script.js';

/**
 * Buffers move without a copy. A thread can't be killed: ending it during a native run aborts the
 * process.
 */
export function openThread(task: WorkerTask, hooks: WorkerHooks): Channel {
  const claims = new BatchClaims();
  const worker = new Worker(entryScript('thread'), {
    workerData: { task, claims: claims.memory },
    name: `serving partition ${task.partition}`,
  });
  let onMessage: OnMessage | undefined;
  let cause: unknown;
  // An ended thread has no number.
  const { threadId } = worker;
  worker.once('exit', () => hooks.threadEnded?.(threadId));
  worker.on('error', (error) => (cause = error));
  worker.on(
    'message',
    ownOnly((message: Parameters<OnMessage>[0]) => onMessage?.(message)),
  );
  worker.on('messageerror', (unreadable) => onMessage?.({ unreadable }));
  return {
    name: 'thread',
    exited: new Promise<WorkerExit>((resolve) =>
      worker.once('exit', (code) => resolve({ code, cause })),
    ),
    listen: (listener) => (onMessage = listener),
    post: (request, transfer) => worker.postMessage(marked(request), transfer),
    revoke: (sent, onRevoked) => onRevoked(claims.revoke(sent)),
    halt: () => worker.postMessage(marked({ halt: true } satisfies WorkerRequest), []),
    ref: () => worker.ref(),
    unref: () => worker.unref(),
  };
}

/** Begun or revoked batches, counted by sender and worker: no batch is both. */
export class BatchClaims {
  private readonly begun: Int32Array;

  constructor(readonly memory = new SharedArrayBuffer(Int32Array.BYTES_PER_ELEMENT)) {
    this.begun = new Int32Array(memory);
  }

  /** Called by the worker, in order from 0. */
  tryBegin(batch: number): boolean {
    // The count has 32 bits and overflows.
    return Atomics.compareExchange(this.begun, 0, batch, batch + 1) === (batch | 0);
  }

  /** Called by the sender; returns the number of revoked batches. */
  revoke(sent: number): number {
    return (sent - Atomics.exchange(this.begun, 0, sent)) | 0;
  }
}
