import { Batch } from '../batch/batch.js';
import { QueueEntry, type QueuedRequest } from '../batching/queued-request.js';
import { isA, isError, type RunTimeoutError, ServingUnavailableError } from '../errors.js';
import type { ReplyTurn } from './reply-order.js';
import { DEFAULT_CALL_OPTIONS, isCancellable, onCancel } from './resolved-call-options.js';
import type { CallRecorder } from '../events/call-recorder.js';
import type { ServingLane } from './lanes.js';
import { DONE } from '../partitions/batch-function.js';
import type { SessionTurn } from './session-turn.js';

/** Rows of a call in the batcher. They may run in several batches, and end in any order. */
export abstract class BatchRequest implements QueuedRequest {
  readonly size: number;
  readonly priority: number;
  readonly tenant: string;
  readonly deadline: number;
  readonly entry: QueueEntry<this> = new QueueEntry();
  isOver = false;
  /** The cost of each row, in a serving with `batchSize.cost`. */
  rowCosts: readonly number[] | undefined;
  /** Its place among the replies of its lane, in a serving that preserves their order. */
  replyTurn: ReplyTurn | undefined;
  /**
   * The error of a batch that took too long. The caller gets it where no partition is left to run
   * the rows again.
   */
  overrun: RunTimeoutError | undefined;
  /** The session of its one row, in a serving with sessions. */
  session: SessionTurn | undefined;
  private missing: number;
  /** Stops waiting for the call to be cancelled. */
  private stopWaiting: (() => void) | undefined;
  /** Called when the caller waits no longer. */
  private ended: (() => void) | undefined;
  /** The rows that a generator has ended with DONE. */
  private done: Set<number> | undefined;

  constructor(
    readonly batch: Batch,
    readonly lane: ServingLane,
    readonly watch?: CallRecorder,
    /** The hooks that the caller asked for. With hooks, all rows run in one batch. */
    readonly hooks?: readonly string[],
    protected readonly terms = DEFAULT_CALL_OPTIONS,
    readonly cost = 0,
  ) {
    this.size = batch.size;
    this.missing = this.size;
    this.priority = terms.priority;
    this.tenant = terms.tenant;
    this.deadline = terms.deadline;
  }

  get whole(): boolean {
    return this.hooks !== undefined || this.size === this.lane.limits.step;
  }

  /** Takes its rows of a batch's output, for the part at `offset`. */
  takeRows(offset: number, { rows, isOwn, metadata }: RunOutput, start: number, end: number): void {
    const part = rows.slice(start, end);
    this.answer(offset, isOwn ? part : part.copy(), metadata);
  }

  /** Takes the output rows of the part at `offset`. The request is over with its last part. */
  answer(offset: number, rows: Batch, metadata: unknown): void {
    if (!this.isOver) {
      this.takeOutput(offset, rows, metadata);
      this.settle(rows.size);
    }
  }

  /** Takes the values that a generator has yielded for the rows from `offset` on. */
  step(offset: number, values: readonly unknown[], metadata: unknown): void {
    const isLive = (value: unknown, i: number): boolean =>
      value !== DONE && this.isWaiting(offset + i);
    const live = values.map(isLive);
    const error = values.find((value, i) => live[i] && isError(value));
    if (error) {
      this.fail(error);
    } else if (live.includes(true)) {
      const own = values.map((value, i) => (live[i] ? value : undefined));
      this.takeStep(offset, own, live, metadata);
    }
    this.endRows(offset, values.length, (i) => values[i] === DONE);
  }

  /** Ends the rows of a part whose generator has ended. */
  endSteps(offset: number, count: number): void {
    this.endRows(offset, count, () => true);
  }

  /** Takes the value of a hook for all rows. */
  abstract hook(name: string, value: unknown): void;

  /** Rejects the call with the error. */
  fail(error: unknown): void {
    if (!this.isOver) {
      this.end();
      this.entry.queue?.leave(this);
      this.reject(isA(error, ServingUnavailableError) ? (this.overrun ?? error) : error);
    }
  }

  /** Fails with the reason when its call is cancelled, at once if that has happened. */
  failWhenCancelled(): void {
    if (isCancellable(this.terms)) {
      const stop = onCancel(this.terms, (reason) => this.fail(reason));
      if (this.isOver) {
        stop();
      } else {
        this.stopWaiting = stop;
      }
    }
  }

  /** The caller waits no longer. */
  end(): void {
    this.isOver = true;
    this.stopWaiting?.();
    this.replyTurn?.end();
    this.ended?.();
  }

  /** Calls back when the caller waits no longer. */
  onEnd(callback: () => void): void {
    const { ended } = this;
    this.ended = ended
      ? () => {
          ended();
          callback();
        }
      : callback;
  }

  expire(): void {
    this.fail(this.terms.deadlineError());
  }

  /**
   * Fails the request, unless a generator had ended all rows of the part before the batch failed.
   */
  failPart(offset: number, count: number, error: unknown): void {
    for (let row = offset; row < offset + count; row++) {
      if (this.isWaiting(row)) {
        this.fail(error);
        return;
      }
    }
  }

  /** Whether the row still needs an output. */
  isWaiting(row: number): boolean {
    return !this.isOver && !this.done?.has(row);
  }

  /** Takes the whole output of a part. */
  protected abstract takeOutput(offset: number, rows: Batch, metadata: unknown): void;
  /**
   * `values` has an entry for every row of the part; where `live` is false, the row had ended
   * before.
   */
  protected abstract takeStep(
    offset: number,
    values: readonly unknown[],
    live: readonly boolean[],
    metadata: unknown,
  ): void;
  /** Ends the steps of a part, of which there may have been none. */
  protected abstract endSteppedPart(offset: number, count: number): void;
  protected abstract finish(): void;
  protected abstract reject(error: unknown): void;

  private endRows(offset: number, count: number, isDone: (i: number) => boolean): void {
    if (this.isOver) {
      return;
    }
    this.done ??= new Set();
    const before = this.done.size;
    let waiting = 0;
    for (let i = 0; i < count; i++) {
      if (isDone(i)) {
        this.done.add(offset + i);
      }
      waiting += this.isWaiting(offset + i) ? 1 : 0;
    }
    const ended = this.done.size - before;
    if (ended > 0 && waiting === 0) {
      this.endSteppedPart(offset, count);
    }
    this.settle(ended);
  }

  private settle(rows: number): void {
    this.missing -= rows;
    if (this.missing > 0) {
      return;
    }
    if (this.replyTurn) {
      // It can be cancelled until its turn has come.
      this.replyTurn.ready(() => this.complete());
    } else {
      this.complete();
    }
  }

  private complete(): void {
    this.end();
    this.finish();
  }
}

/** The output of a batch. */
export interface RunOutput {
  readonly rows: Batch;
  /** Whether nothing else refers to their memory. */
  readonly isOwn: boolean;
  readonly metadata: unknown;
}
