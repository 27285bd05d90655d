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
  type BatchEnd,
  type BatchProgress,
  type Channel,
  type Loaded,
  type OnMessage,
  STEPS_AHEAD,
  type WorkerExit,
  type WorkerTask,
} from './worker-protocol.js';
import {
  LostInTransitError,
  NotStartedError,
  OutputLostError,
  type PartitionResult,
  RevokedError,
  STEPPED,
} from '../partition.js';
import { openProcess } from './process-channel.js';
import type { Worker } from './supervised.partition.js';
import { openThread } from './thread-channel.js';
import { BatchTransfer } from './batch-transfer.js';
import { unpackOutput } from './transfer.js';
import type { BatchInfo, BatchListener } from '../batch-function.js';

/** The place of a session: in a thread of the application's process, or in a process of its own. */
export type Isolation = 'thread' | 'process';

/** Often enough that a generator does not wait, and not a message for each step. */
const STEPS_PER_ACKNOWLEDGEMENT = STEPS_AHEAD / 4;

interface Pending {
  readonly info: BatchInfo;
  readonly listener: BatchListener;
  readonly resolve: (result: PartitionResult | typeof STEPPED) => void;
  readonly reject: (error: unknown) => void;
  /** The rows that were reported to the worker as ended. */
  readonly endedRows: Set<number>;
  /** The steps received. */
  steps: number;
}

/**
 * A session in a worker, a thread or a process of its own, so that the application's event loop
 * stays free while it runs.
 *
 * A worker that is closed ends after its last batch. Without a batch it does not keep the
 * application alive.
 */
export class WorkerPartition implements Worker {
  readonly prefetch = 1;
  lost?: Error;
  readonly ended: Promise<Error>;
  readonly kill?: () => void;
  private readonly transfer: BatchTransfer;
  /** The worker answers in order, so the first entry is the batch that runs. */
  private readonly pending: Pending[] = [];
  /** The number of batches that have ended, by which messages refer to a batch. */
  private settled = 0;
  private readonly exited: Promise<void>;
  private reportEnd!: (reason: Error) => void;
  private isClosing = false;
  /** The batch that runs hangs, and keeps the application alive no longer. */
  private isAbandoned = false;

  private constructor(
    private readonly channel: Channel,
    private readonly task: WorkerTask,
    readonly loaded: Loaded,
  ) {
    this.transfer = new BatchTransfer(task.partition, loaded.signature);
    channel.listen((message) => this.receive(message));
    channel.unref();
    this.ended = new Promise((resolve) => (this.reportEnd = resolve));
    this.exited = channel.exited.then((exit) => this.onExit(exit));
    if (channel.kill) {
      this.kill = () => channel.kill!();
    }
  }

  /** Starts the worker and resolves when it is loaded. The signal halts a worker that loads. */
  static async open(
    task: WorkerTask,
    isolation: Isolation = 'thread',
    end?: AbortSignal,
  ): Promise<WorkerPartition> {
    const channel = isolation === 'process' ? await openProcess(task) : openThread(task);
    const halt = (): void => channel.halt();
    end?.addEventListener('abort', halt);
    if (end?.aborted) {
      halt();
    }
    const opening = new Promise<Parameters<OnMessage>[0]>((resolve) => channel.listen(resolve));
    const first = await Promise.race([opening, exitWhileLoading(channel, task)]);
    if (end?.aborted) {
      // The message of a loaded thread may arrive after it was halted.
      return exitWhileLoading(channel, task);
    }
    if ('error' in first) {
      throw fromWire(first.error);
    }
    return new WorkerPartition(channel, task, 'signature' in first ? first : {});
  }

  run(
    batch: Batch,
    info: BatchInfo,
    listener: BatchListener,
  ): Promise<PartitionResult | typeof STEPPED> {
    return new Promise((resolve, reject) => {
      const { lost, channel, pending } = this;
      if (lost) {
        throw new NotStartedError(lost.message, { cause: lost.cause });
      }
      this.transfer.send(batch, info, channel);
      channel.ref();
      pending.push({ info, listener, resolve, reject, endedRows: new Set(), steps: 0 });
    });
  }

  revokePending(): void {
    const message =
      `Partition ${this.task.partition} did not begin the batch, since the one before it does ` +
      'not end';
    this.rejectRevoked(() => new NotStartedError(message));
    this.isAbandoned = true;
    this.channel.unref();
  }

  revoke(): void {
    const message = `Partition ${this.task.partition} did not begin the batch, and another is idle`;
    this.rejectRevoked(() => new RevokedError(message));
  }

  endSessions(ids: readonly number[]): void {
    if (!this.lost && !this.isClosing) {
      this.channel.post({ endedSessions: ids }, []);
    }
  }

  halt(): void {
    this.isClosing = true;
    this.channel.halt();
  }

  async close(): Promise<void> {
    if (!this.isClosing) {
      this.isClosing = true;
      this.channel.post({ end: true }, []);
      if (!this.isAbandoned) {
        this.channel.ref();
      }
    }
    await this.exited;
  }

  private rejectRevoked(error: () => Error): void {
    const sent = this.settled + this.pending.length;
    this.channel.revoke(sent, (count) => {
      const { settled, pending } = this;
      const [start, end] = [sent - count, sent].map((batch) => Math.max(0, batch - settled));
      pending.slice(start, end).forEach(({ reject }) => reject(error()));
    });
  }

  private receive(message: Parameters<OnMessage>[0]): void {
    const [running] = this.pending;
    if (!running) {
      return;
    }
    if ('unreadable' in message) {
      // Perhaps not the last message of the batch: the worker is to end it.
      this.sendEndedRows(running, rowsOf(running));
      this.settle(running, { error: toWire(unreadableError(message.unreadable)) });
    } else if ('batch' in message && message.batch === this.settled) {
      if ('hook' in message || 'step' in message) {
        this.progress(running, message);
      } else {
        this.settle(running, message);
      }
    }
  }

  private settle(running: Pending, end: BatchEnd): void {
    this.pending.shift();
    this.settled++;
    this.isAbandoned = false;
    if (this.pending.length === 0 && !this.isClosing) {
      this.channel.unref();
    }
    try {
      running.resolve(this.transfer.resultOf(end));
    } catch (error) {
      running.reject(error);
    }
  }

  /** Progress that the listener refuses fails the batch at once; the worker ends it later. */
  private progress(running: Pending, message: BatchProgress): void {
    const { listener, endedRows } = running;
    try {
      if ('hook' in message) {
        listener.hook(message.hook, unpackOutput(message.value), true);
        return;
      }
      if (++running.steps % STEPS_PER_ACKNOWLEDGEMENT === 0) {
        const acknowledged = STEPS_PER_ACKNOWLEDGEMENT;
        this.channel.post({ batch: this.settled, acknowledged }, []);
      }
      listener.step(unpackOutput(message.step), message.metadata);
    } catch (error) {
      running.reject(error);
    }
    const ended = rowsOf(running).filter((row) => !endedRows.has(row) && !listener.isWaiting(row));
    if (ended.length > 0) {
      this.sendEndedRows(running, ended);
    }
  }

  private sendEndedRows({ endedRows }: Pending, rows: readonly number[]): void {
    rows.forEach((row) => endedRows.add(row));
    this.channel.post({ batch: this.settled, endedRows: rows }, []);
  }

  private onExit(exit: WorkerExit): void {
    const { channel, task, settled } = this;
    const message = `The ${channel.name} of partition ${task.partition} ${describeExit(exit)}`;
    const { cause } = exit;
    const lost = new PartitionLostError(message, { cause });
    this.lost = lost;
    // First, so that the partition is known as lost when its batches fail.
    if (!this.isClosing) {
      this.reportEnd(lost);
    }
    // Without a count, the first batch without a reply may have begun.
    const newest = (channel.begun ?? settled + 1) - 1;
    this.pending.splice(0).forEach(({ reject }, i) => {
      const batch = settled + i;
      // The worker may have died of reading the first batch that it has not begun.
      const Loss =
        batch < newest ? OutputLostError : i === 0 ? LostInTransitError : NotStartedError;
      reject(batch === newest ? lost : new Loss(message, { cause }));
    });
  }
}

function rowsOf({ info }: Pending): number[] {
  return Array.from({ length: info.size }, (_, row) => row);
}

async function exitWhileLoading({ name, exited }: Channel, task: WorkerTask): Promise<never> {
  const exit = await exited;
  const loaded =
    'file' in task
      ? task.file
      : task.model.files.size > 0
        ? task.model.name
        : `a model ${task.model.name}`;
  throw new ServingLoadError(
    `The ${name} of partition ${task.partition} ${describeExit(exit)} while it loaded ${loaded}`,
    { cause: exit.cause },
  );
}

function describeExit({ code, signal, cause }: WorkerExit): string {
  const how = signal ? `was killed by ${signal}` : `ended with code ${code}`;
  return cause === undefined ? how : `${how} (${messageOf(cause)})`;
}

function unreadableError(cause: unknown): Error {
  return new InvalidOutputError(
    `The output of the batch function cannot be read here: ${messageOf(cause)}`,
    { cause },
  );
}
