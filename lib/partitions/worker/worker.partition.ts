import type { Batch } from '../../batch/batch.js';
import {
  fromWire,
  InvalidOutputError,
  messageOf,
  PartitionLostError,
  ServingLoadError,
  toWire,
} from '../../errors.js';
import {
  type Channel,
  type Ending,
  type OnMessage,
  type BatchEnd,
  type BatchProgress,
  type Loaded,
  STEPS_AHEAD,
  type WorkerTask,
} from './worker-protocol.js';
import {
  LostInTransitError,
  type PartitionResult,
  NotStartedError,
  RevokedError,
  OutputLostError,
  STEPPED,
} from '../partition.js';
import { openProcess } from './process-channel.js';
import type { Worker } from './supervised.partition.js';
import { openThread } from './thread-channel.js';
import { sendRows, unpackOutput } from './transfer.js';
import type { BatchInfo, BatchListener } from '../batch-function.js';

/**
 * Where the session of a partition lives: in a thread of the application's process, or in a process
 * of its own.
 */
export type Isolation = 'thread' | 'process';

/**
 * Every so many steps the worker is told that they were heard: often enough that it goes on, and
 * not with each.
 */
const STEPS_PER_ACKNOWLEDGEMENT = STEPS_AHEAD / 4;

interface Pending {
  readonly info: BatchInfo;
  readonly listener: BatchListener;
  readonly resolve: (end: BatchEnd) => void;
  readonly reject: (error: unknown) => void;
  /** The rows of which the worker knows that nobody waits for them. */
  readonly over: Set<number>;
  /** The steps that were heard. */
  steps: number;
}

/**
 * A session in a worker, a thread or a process of its own, so that the application's event loop
 * stays free while it runs.
 *
 * A worker is asked to end, and does so after its last batch. While it holds no batch it does not
 * keep the application alive.
 */
export class WorkerPartition implements Worker {
  readonly prefetch = 1;
  lost?: Error;
  /** Resolves with the reason when the worker has gone without having been asked to. */
  readonly ended: Promise<Error>;
  /** Ends it at once, whatever it does; where that is safe, as for a process. */
  readonly kill?: () => void;
  /** The worker answers in order, so the oldest is always the next. */
  private readonly pending: Pending[] = [];
  /** Counts the batches that have ended, as the worker does. */
  private settled = 0;
  private readonly gone: Promise<Error>;
  private isClosing = false;
  /** Nobody waits for the batch that runs, so it keeps no application alive. */
  private isRevoked = false;

  private constructor(
    private readonly channel: Channel,
    private readonly task: WorkerTask,
    /** The model that it has loaded, if that is one. */
    readonly loaded: Loaded,
  ) {
    channel.listen((message) => this.hear(message));
    channel.unref();
    this.gone = channel.ended.then((ending) => this.end(ending));
    this.ended = new Promise(
      (resolve) => void this.gone.then((reason) => this.isClosing || resolve(reason)),
    );
    if (channel.kill) {
      this.kill = () => channel.kill!();
    }
  }

  /**
   * Starts the worker and resolves when it is loaded. When the signal aborts, the worker is ended
   * as soon as that is safe.
   */
  static async open(
    task: WorkerTask,
    isolation: Isolation = 'thread',
    end?: AbortSignal,
  ): Promise<WorkerPartition> {
    const channel = isolation === 'process' ? await openProcess(task) : openThread(task);
    const leave = (): void => channel.halt();
    end?.addEventListener('abort', leave);
    if (end?.aborted) {
      leave();
    }
    const opening = new Promise<Parameters<OnMessage>[0]>((resolve) => channel.listen(resolve));
    const first = await Promise.race([opening, endAtLoad(channel, task)]);
    if (end?.aborted) {
      // A thread that was halted may still say that it is loaded.
      return endAtLoad(channel, task);
    }
    if ('error' in first) {
      throw fromWire(first.error);
    }
    return new WorkerPartition(channel, task, 'signature' in first ? first : {});
  }

  async run(
    batch: Batch,
    info: BatchInfo,
    listener: BatchListener,
  ): Promise<PartitionResult | typeof STEPPED> {
    if (this.lost) {
      throw new NotStartedError(this.lost.message, { cause: this.lost.cause });
    }
    const end = await this.ask(batch, info, listener);
    if ('error' in end) {
      throw fromWire(end.error);
    }
    return 'stepped' in end
      ? STEPPED
      : { output: unpackOutput(end.output), metadata: end.metadata, own: true };
  }

  revokePending(): void {
    const message =
      `Partition ${this.task.partition} did not come to the batch, since the one ` +
      'before it does not end';
    this.recall(() => new NotStartedError(message));
    this.isRevoked = true;
    this.channel.unref();
  }

  revoke(): void {
    const message = `Partition ${this.task.partition} did not begin the batch, and another is idle`;
    this.recall(() => new RevokedError(message));
  }

  halt(): void {
    this.isClosing = true;
    this.channel.halt();
  }

  async close(): Promise<void> {
    if (!this.isClosing) {
      this.isClosing = true;
      this.channel.post({ end: true }, []);
      if (!this.isRevoked) {
        this.channel.ref();
      }
    }
    await this.gone;
  }

  /** Rejects the batches that the worker has not begun. */
  private recall(error: () => Error): void {
    const given = this.settled + this.pending.length;
    this.channel.revoke(given, (taken) => {
      const { settled, pending } = this;
      for (const { reject } of pending.slice(
        Math.max(0, given - taken - settled),
        Math.max(0, given - settled),
      )) {
        reject(error());
      }
    });
  }

  private async ask(batch: Batch, info: BatchInfo, listener: BatchListener): Promise<BatchEnd> {
    sendRows(batch, (rows, transfer) =>
      this.channel.post({ rows, info: { ...info, partition: this.task.partition } }, transfer),
    );
    this.channel.ref();
    return new Promise((resolve, reject) =>
      this.pending.push({ info, listener, resolve, reject, over: new Set(), steps: 0 }),
    );
  }

  private hear(message: Parameters<OnMessage>[0]): void {
    const [running] = this.pending;
    if (!running) {
      return;
    }
    if ('unreadable' in message) {
      // It may have been the last of the batch; if not, the rest of it is not heard, and need not
      // be said.
      this.sendEndedRows(running, rowsOf(running));
      this.settle(running, { error: toWire(unreadable(message.unreadable)) });
    } else if ('batch' in message && message.batch === this.settled) {
      if ('hook' in message || 'step' in message) {
        this.tell(running, message);
      } else {
        this.settle(running, message);
      }
    }
  }

  private settle(running: Pending, end: BatchEnd): void {
    this.pending.shift();
    this.settled++;
    this.isRevoked = false;
    if (this.pending.length === 0 && !this.isClosing) {
      this.channel.unref();
    }
    running.resolve(end);
  }

  /**
   * What cannot be heard of a batch fails it at once; the worker hears with the next step that
   * nobody waits, and may be busy with it until then.
   */
  private tell(running: Pending, news: BatchProgress): void {
    const { listener, over } = running;
    try {
      if ('hook' in news) {
        listener.hook(news.hook, unpackOutput(news.value), true);
        return;
      }
      if (++running.steps % STEPS_PER_ACKNOWLEDGEMENT === 0) {
        this.channel.post({ batch: this.settled, heard: STEPS_PER_ACKNOWLEDGEMENT }, []);
      }
      listener.step(unpackOutput(news.step), news.metadata);
    } catch (error) {
      running.reject(error);
    }
    const left = rowsOf(running).filter((row) => !over.has(row) && !listener.isWaiting(row));
    if (left.length > 0) {
      this.sendEndedRows(running, left);
    }
  }

  private sendEndedRows({ over }: Pending, rows: readonly number[]): void {
    rows.forEach((row) => over.add(row));
    this.channel.post({ batch: this.settled, over: rows }, []);
  }

  private end(ending: Ending): Error {
    const { channel, task, settled } = this;
    const message = `The ${channel.name} of partition ${task.partition} ${endOf(ending)}`;
    const { cause } = ending;
    const lost = new PartitionLostError(message, { cause });
    this.lost = lost;
    // Where there are no marks, it may have begun what it has not answered.
    const newest = (channel.begun ?? settled + 1) - 1;
    this.pending.splice(0).forEach(({ reject }, i) => {
      const batch = settled + i;
      // It begins with one when it has ended the one before, and may not survive to read the next.
      const Loss =
        batch < newest ? OutputLostError : i === 0 ? LostInTransitError : NotStartedError;
      reject(batch === newest ? lost : new Loss(message, { cause }));
    });
    return lost;
  }
}

function rowsOf({ info }: Pending): number[] {
  return Array.from({ length: info.size }, (_, row) => row);
}

async function endAtLoad({ name, ended }: Channel, task: WorkerTask): Promise<never> {
  const ending = await ended;
  const what =
    'file' in task
      ? task.file
      : task.model.files.size > 0
        ? task.model.name
        : `a model ${task.model.name}`;
  throw new ServingLoadError(
    `The ${name} of partition ${task.partition} ${endOf(ending)} while it loaded ${what}`,
    {
      cause: ending.cause,
    },
  );
}

function endOf({ code, signal, cause }: Ending): string {
  const how = signal ? `was killed by ${signal}` : `ended with code ${code}`;
  return cause === undefined ? how : `${how} (${messageOf(cause)})`;
}

function unreadable(cause: unknown): Error {
  return new InvalidOutputError(
    `What the batch function says cannot be read here: ${messageOf(cause)}`,
    { cause },
  );
}
