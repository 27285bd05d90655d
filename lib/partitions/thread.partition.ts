import { once } from 'node:events';
import { Worker } from 'node:worker_threads';
import type { Batch } from '../batch/batch.js';
import { fromWire, InvalidOutputError, messageOf, PartitionLostError, ServingLoadError } from '../errors.js';
import type { ModelSignature } from './model-signature.js';
import { type BatchInfo, type BatchListener, type BatchOutput, type BatchResult, type Partition, STEPPED } from './partition.js';
import type { ThreadOpening, ThreadReply, ThreadRequest, ThreadResult, ThreadSaying, ThreadTask } from './thread-protocol.js';
import { threadUrl } from './thread-url.js';
import { sendRows, unpack } from './wire.js';

interface Pending {
  readonly batch: Batch;
  readonly info: BatchInfo;
  readonly listener: BatchListener;
  readonly resolve: (result: ThreadResult | Promise<ThreadResult>) => void;
  readonly reject: (error: unknown) => void;
  /** The rows of which the thread knows that nobody waits for them. */
  readonly over: Set<number>;
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
  /** Counts the batches that have ended, as the thread does. */
  private settled = 0;
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
    worker.on('message', (reply: ThreadReply) => this.hear(reply));
    worker.on('messageerror', (error) => this.miss(error));
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

  async run(batch: Batch, info: BatchInfo, listener: BatchListener): Promise<BatchResult | typeof STEPPED> {
    if (this.lost) {
      throw this.lost;
    }
    const result = await this.ask(batch, info, listener);
    if ('error' in result) {
      throw fromWire(result.error);
    }
    return 'stepped' in result ? STEPPED : { output: unpack(result.output) as BatchOutput, metadata: result.metadata };
  }

  close(): Promise<void> {
    this.post(null);
    this.worker.ref();
    return this.ended;
  }

  private async ask(batch: Batch, info: BatchInfo, listener: BatchListener): Promise<ThreadResult> {
    sendRows(batch, (rows, transfer) => this.post({ rows, info: { ...info, partition: this.task.partition } }, transfer));
    this.worker.ref();
    return new Promise((resolve, reject) => this.pending.push({ batch, info, listener, resolve, reject, over: new Set() }));
  }

  private hear(reply: ThreadReply): void {
    // The end of an earlier one may have been unreadable.
    while (this.settled < reply.batch) {
      this.settle();
    }
    if ('hook' in reply || 'step' in reply) {
      this.tell(this.pending[0]!, reply);
      return;
    }
    this.settle().resolve(reply);
  }

  /** Fails the batch that was spoken of, which may have ended with that, or go on. */
  private miss(cause: Error): void {
    const [running] = this.pending;
    running?.reject(new InvalidOutputError(`What a batch returned cannot be read here: ${messageOf(cause)}`, { cause }));
    if (this.pending.length === 1) {
      this.worker.unref();
    }
  }

  private settle(): Pending {
    const ended = this.pending.shift()!;
    this.settled++;
    if (this.pending.length === 0) {
      this.worker.unref();
    }
    return ended;
  }

  /** What cannot be heard of a batch fails it at once; the thread hears with the next step that nobody waits, and may be busy with it until then. */
  private tell(running: Pending, reply: Exclude<ThreadSaying, ThreadResult>): void {
    const { listener, info, over } = running;
    try {
      if ('hook' in reply) {
        listener.hook(reply.hook, unpack(reply.value), true);
        return;
      }
      listener.step(unpack(reply.step), reply.metadata);
    } catch (error) {
      running.reject(error);
    }
    const news = Array.from({ length: info.size }, (_, row) => row).filter((row) => !over.has(row) && !listener.isWaiting(row));
    if (news.length > 0) {
      news.forEach((row) => over.add(row));
      this.post({ batch: this.settled, over: news });
    }
  }

  private post(request: ThreadRequest, transfer: ArrayBuffer[] = []): void {
    this.worker.postMessage(request, transfer);
  }

  private end(): void {
    this.lost = new PartitionLostError(`The thread of partition ${this.task.partition} has ended`, { cause: this.failure });
    const [held, ...ahead] = this.pending.splice(0);
    held?.reject(this.lost);
    const heir = this.siblings.find(({ lost }) => !lost);
    for (const { batch, info, listener, resolve, reject } of ahead) {
      if (heir) {
        resolve(heir.ask(batch, info, listener));
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
