import { once } from 'node:events';
import { Worker } from 'node:worker_threads';
import type { Batch } from '../batch/batch.js';
import { fromWire, PartitionLostError, ServingLoadError } from '../errors.js';
import type { ModelSignature } from './model-signature.js';
import { type BatchOutput, type BatchResult, contextOf, type Partition } from './partition.js';
import type { ThreadOpening, ThreadReply, ThreadRequest, ThreadTask } from './thread-protocol.js';
import { threadUrl } from './thread-url.js';
import { pack, unpack } from './wire.js';

interface Pending {
  readonly batch: Batch;
  readonly resolve: (reply: ThreadReply | Promise<ThreadReply>) => void;
  readonly reject: (error: Error) => void;
}

/**
 * A session in a thread of its own, so that the application's event loop stays free while it runs.
 *
 * It is never terminated: ending a thread inside a native run aborts the whole process. It is asked to end, and does so
 * after its last batch. While it holds no batch it does not keep the process alive.
 */
export class ThreadPartition implements Partition {
  readonly prefetch = 1;
  lost?: Error;
  /** Who takes over what this thread was handed ahead, should it die. */
  siblings: readonly ThreadPartition[] = [];
  /** The thread answers in order, so the oldest is always the next. */
  private readonly pending: Pending[] = [];
  private readonly ended: Promise<void>;
  private failure: unknown;

  private constructor(
    private readonly worker: Worker,
    private readonly task: ThreadTask,
    /** What the model says of itself. */
    readonly signature: ModelSignature | undefined,
  ) {
    this.ended = new Promise((resolve) => worker.once('exit', () => resolve(this.end())));
    worker.on('error', (error) => (this.failure = error));
    worker.on('message', (reply: ThreadReply) => this.settle(reply));
    worker.unref();
  }

  /** Starts the thread and resolves when it is loaded. */
  static async open(task: ThreadTask): Promise<ThreadPartition> {
    const worker = new Worker(threadUrl, { workerData: task, name: `serving partition ${task.partition}` });
    const [opening] = (await Promise.race([once(worker, 'message'), exitOf(worker)])) as [ThreadOpening];
    if ('error' in opening) {
      throw fromWire(opening.error);
    }
    return new ThreadPartition(worker, task, opening.signature);
  }

  async run(batch: Batch): Promise<BatchResult> {
    if (this.lost) {
      throw this.lost;
    }
    const reply = await this.ask(batch);
    if ('error' in reply) {
      throw fromWire(reply.error);
    }
    return { output: unpack(reply.output) as BatchOutput, metadata: reply.metadata };
  }

  close(): Promise<void> {
    this.worker.postMessage(null satisfies ThreadRequest);
    this.worker.ref();
    return this.ended;
  }

  private async ask(batch: Batch): Promise<ThreadReply> {
    const [rows, transfer] = pack(batch.consume(), batch.isPlain);
    const request: ThreadRequest = { rows, context: contextOf(batch, this.task.partition) };
    // Plain values still belong to the caller, also where they are tensors.
    this.worker.postMessage(request, batch.isPlain ? [] : transfer);
    this.worker.ref();
    return new Promise((resolve, reject) => this.pending.push({ batch, resolve, reject }));
  }

  private settle(reply: ThreadReply): void {
    const { resolve } = this.pending.shift()!;
    if (this.pending.length === 0) {
      this.worker.unref();
    }
    resolve(reply);
  }

  private end(): void {
    this.lost = new PartitionLostError(`The thread of partition ${this.task.partition} has ended`, { cause: this.failure });
    const [held, ...ahead] = this.pending.splice(0);
    held?.reject(this.lost);
    const heir = this.siblings.find(({ lost }) => !lost);
    for (const { batch, resolve, reject } of ahead) {
      if (heir) {
        resolve(heir.ask(batch));
      } else {
        reject(this.lost);
      }
    }
  }
}

async function exitOf(worker: Worker): Promise<never> {
  const [code] = (await once(worker, 'exit')) as [number];
  throw new ServingLoadError(`The thread ended with code ${code} before it was loaded`);
}
