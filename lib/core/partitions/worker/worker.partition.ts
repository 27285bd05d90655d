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
  type WorkerHooks,
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
import { packTensors, sendRows, SpareMemory, unpackOutput, unpackTensors } from './transfer.js';
import type { BatchInfo, BatchListener } from '../batch-function.js';
import { feedsOf, ModelReply } from '../model/model-io.js';
import type { ModelSignature } from '../model/model-signature.js';

/** The place of a session: a thread or a separate process. */
export type Isolation = 'thread' | 'process';

/** Keeps generators running, without a message per step. */
const STEPS_PER_ACKNOWLEDGEMENT = STEPS_AHEAD / 4;

interface Pending {
  readonly batch: number;
  readonly info: BatchInfo;
  readonly listener: BatchListener;
  readonly resolve: (result: PartitionResult | typeof STEPPED) => void;
  readonly reject: (error: unknown) => void;
  readonly endedRows: Set<number>;
  steps: number;
}

/** A closed worker ends after its last batch; an idle one doesn't keep the application alive. */
export class WorkerPartition implements Worker {
  readonly prefetch: number;
  readonly capacity: number | undefined;
  readonly reports: string | undefined;
  lost?: Error;
  readonly ended: Promise<Error>;
  readonly kill?: () => void;
  private readonly transfer: BatchTransfer;
  /** Sending order. The first runs; with a capacity, all do. */
  private readonly pending = new Map<number, Pending>();
  private sent = 0;
  private readonly exited: Promise<void>;
  private reportEnd!: (reason: Error) => void;
  private isClosing = false;
  /** True while a batch hangs, which doesn't keep the application alive. */
  private isAbandoned = false;

  private constructor(
    private readonly channel: Channel,
    private readonly task: WorkerTask,
    readonly loaded: Loaded,
  ) {
    const { capacity, reports } = ('file' in task && task.continuous) || {};
    this.capacity = capacity;
    this.reports = reports;
    this.prefetch = capacity === undefined ? 1 : 0;
    this.transfer = new BatchTransfer(task.partition, loaded.signature);
    channel.listen((message) => this.receive(message));
    channel.unref();
    this.ended = new Promise((resolve) => (this.reportEnd = resolve));
    this.exited = channel.exited.then((exit) => this.onExit(exit));
    if (channel.kill) {
      this.kill = () => channel.kill!();
    }
  }

  static async open(
    task: WorkerTask,
    isolation: Isolation = 'thread',
    end?: AbortSignal,
    hooks: WorkerHooks = {},
  ): Promise<WorkerPartition> {
    const channel =
      isolation === 'process'
        ? await openProcess('opener' in task ? ((await hooks.forProcess?.(task)) ?? task) : task)
        : openThread(task, hooks);
    const halt = (): void => channel.halt();
    end?.addEventListener('abort', halt);
    if (end?.aborted) {
      halt();
    }
    const opening = new Promise<Parameters<OnMessage>[0]>((resolve) => channel.listen(resolve));
    const first = await Promise.race([opening, exitWhileLoading(channel, task)]);
    if (end?.aborted) {
      // A loaded thread's message may arrive after the halt.
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
      const number = this.sent++;
      const endedRows = new Set<number>();
      pending.set(number, { batch: number, info, listener, resolve, reject, endedRows, steps: 0 });
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

  forget(ids: readonly number[]): void {
    if (!this.lost && !this.isClosing) {
      this.channel.post({ forget: ids }, []);
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
    const { sent } = this;
    this.channel.revoke(sent, (count) => {
      for (let batch = sent - count; batch < sent; batch++) {
        this.pending.get(batch)?.reject(error());
      }
    });
  }

  private receive(message: Parameters<OnMessage>[0]): void {
    if ('unreadable' in message) {
      const error = toWire(unreadableError(message.unreadable));
      for (const running of this.running()) {
        // Perhaps not the last message, so the worker must end the batch.
        this.sendEndedRows(running, rowsOf(running));
        this.settle(running, { error });
      }
      return;
    }
    const running = 'batch' in message ? this.pending.get(message.batch) : undefined;
    if (!running || !('batch' in message)) {
      return;
    }
    if ('hook' in message || 'step' in message) {
      this.progress(running, message);
    } else {
      this.settle(running, message);
    }
  }

  private running(): readonly Pending[] {
    const pending = [...this.pending.values()];
    return this.capacity === undefined ? pending.slice(0, 1) : pending;
  }

  private settle(running: Pending, end: BatchEnd): void {
    this.pending.delete(running.batch);
    this.isAbandoned = false;
    if (this.pending.size === 0 && !this.isClosing) {
      this.channel.unref();
    }
    try {
      running.resolve(this.transfer.resultOf(end));
    } catch (error) {
      running.reject(error);
    }
  }

  /** If the listener throws, the batch fails immediately; the worker ends it later. */
  private progress(running: Pending, message: BatchProgress): void {
    const { batch, listener } = running;
    try {
      if ('hook' in message) {
        listener.hook(message.hook, unpackOutput(message.value), true);
        return;
      }
      if (++running.steps % STEPS_PER_ACKNOWLEDGEMENT === 0) {
        const acknowledged = STEPS_PER_ACKNOWLEDGEMENT;
        this.channel.post({ batch, acknowledged }, []);
      }
      listener.step(unpackOutput(message.step), message.metadata);
    } catch (error) {
      running.reject(error);
    }
    if (this.capacity === undefined) {
      this.reportEndedRows(running);
    } else {
      // Rows that wait for their first step have no messages yet.
      this.pending.forEach((each) => this.reportEndedRows(each));
    }
  }

  private reportEndedRows(running: Pending): void {
    const { listener, endedRows } = running;
    const ended = rowsOf(running).filter((row) => !endedRows.has(row) && !listener.isWaiting(row));
    if (ended.length > 0) {
      this.sendEndedRows(running, ended);
    }
  }

  private sendEndedRows({ batch, endedRows }: Pending, rows: readonly number[]): void {
    rows.forEach((row) => endedRows.add(row));
    this.channel.post({ batch, endedRows: rows }, []);
  }

  private onExit(exit: WorkerExit): void {
    const { channel, task, capacity } = this;
    const message = `The ${channel.name} of partition ${task.partition} ${describeExit(exit)}`;
    const { cause } = exit;
    const lost = new PartitionLostError(message, { cause });
    this.lost = lost;
    // The partition must count as lost when its batches fail.
    if (!this.isClosing) {
      this.reportEnd(lost);
    }
    const pending = [...this.pending.values()];
    this.pending.clear();
    // Without a count, the first unanswered batch may have begun; with a capacity, all may.
    const waiting = capacity === undefined ? Math.max(0, pending.length - 1) : 0;
    const newest = (channel.begun ?? this.sent - waiting) - 1;
    pending.forEach(({ batch, reject }, i) => {
      // Reading the first batch that has not begun may have killed the worker.
      const Loss =
        batch < newest ? OutputLostError : i === 0 ? LostInTransitError : NotStartedError;
      const isLost = batch === newest || (batch < newest && capacity !== undefined);
      reject(isLost ? lost : new Loss(message, { cause }));
    });
  }
}

function rowsOf({ info }: Pending): number[] {
  return Array.from({ length: info.size }, (_, row) => row);
}

async function exitWhileLoading({ name, exited }: Channel, task: WorkerTask): Promise<never> {
  const exit = await exited;
  const loaded = 'file' in task ? task.file : task.name;
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

class BatchTransfer {
  private readonly reply: ModelReply | undefined;
  private readonly memory = new SpareMemory();

  constructor(
    private readonly partition: number,
    private readonly signature?: ModelSignature,
  ) {
    this.reply = signature && new ModelReply(signature);
  }

  /**
   * @throws RejectedRowsError for plain values that can't be sent, such as functions
   * @throws TooLargeToSendError when the rows are too large for one message
   */
  send(batch: Batch, info: BatchInfo, channel: Channel): void {
    const { partition, signature } = this;
    if (signature) {
      const rows = batch.gather(this.memory.memoryOf);
      const [feeds, transfer] = packTensors(feedsOf(rows, signature.inputs));
      const { hooks, turns } = info;
      channel.post(turns ? { feeds, hooks, turns } : { feeds, hooks }, transfer);
    } else {
      sendRows(batch, (rows, transfer) =>
        channel.post({ rows, info: { ...info, partition } }, transfer),
      );
    }
  }

  /** @throws the batch's error */
  resultOf(end: BatchEnd): PartitionResult | typeof STEPPED {
    if ('error' in end) {
      throw fromWire(end.error);
    }
    if ('stepped' in end) {
      return STEPPED;
    }
    if ('output' in end) {
      return { output: unpackOutput(end.output), metadata: end.metadata, own: true };
    }
    if (end.spare) {
      this.memory.keep(end.spare);
    }
    const reply = this.reply!;
    return { output: reply.of(unpackTensors(end.reply, reply.ports)), own: true };
  }
}
