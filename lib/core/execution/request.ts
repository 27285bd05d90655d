import { Batch } from '../batch/batch.js';
import { QueuedRequest } from '../batching/queued-request.js';
import { isA, isError, noteRun, type RunTimeoutError, ServingUnavailableError } from '../errors.js';
import type { ReplyTurn, ServingLane } from './lanes.js';
import {
  DEFAULT_CALL_OPTIONS,
  type Due,
  isCancellable,
  onCancel,
  type ResolvedCallOptions,
} from './resolved-call-options.js';
import type { CallRecorder } from '../events/call-recorder.js';
import { type BatchOutput, DONE } from '../partitions/batch-function.js';
import { asOutput } from '../batch/container.js';
import { deepCopy } from '../batch/deep-copy.js';
import type { CallMetadata } from '../definition/reply.js';
import type { StateTurn } from '../partitions/row-states.js';

/** The rows may run in several batches, and end in any order. */
export abstract class BatchRequest extends QueuedRequest {
  readonly size: number;
  readonly priority: number;
  readonly tenant: string;
  private readonly due: Due;
  isOver = false;
  rowCosts: readonly number[] | undefined;
  /** Set with `queue.order`. */
  replyTurn: ReplyTurn | undefined;
  /** The caller gets this error if no partition is left. */
  overrun: RunTimeoutError | undefined;
  stateTurn: StateTurn | undefined;
  private missing: number;
  private stopWaiting: (() => void) | undefined;
  private ended: (() => void) | undefined;
  /** Rows that a generator ended with DONE. */
  private done: Set<number> | undefined;

  constructor(
    readonly batch: Batch,
    readonly lane: ServingLane,
    readonly watch?: CallRecorder,
    /** All rows run in one batch if there are hooks. */
    readonly hooks?: readonly string[],
    protected readonly terms = DEFAULT_CALL_OPTIONS,
    readonly cost = 0,
  ) {
    super();
    this.size = batch.size;
    this.missing = this.size;
    this.priority = terms.priority;
    this.tenant = terms.tenant;
    this.due = terms.shared ?? terms;
  }

  get deadline(): number {
    return this.due.deadline;
  }

  get whole(): boolean {
    return this.hooks !== undefined || this.size === this.lane.limits.step;
  }

  takeRows(offset: number, { rows, isOwn, metadata }: RunOutput, start: number, end: number): void {
    const part = rows.slice(start, end);
    this.answer(offset, isOwn ? part : part.copy(), metadata);
  }

  /** The last part ends the request. */
  answer(offset: number, rows: Batch, metadata: unknown): void {
    if (!this.isOver) {
      this.takeOutput(offset, rows, metadata);
      this.settle(rows.size);
    }
  }

  step(offset: number, values: readonly unknown[], metadata: unknown): void {
    const isLive = (value: unknown, i: number): boolean =>
      value !== DONE && this.isWaiting(offset + i);
    const live = values.map(isLive);
    const error = values.find((value, i) => live[i] && isError(value));
    if (error) {
      this.fail(noteRun(error));
    } else if (live.includes(true)) {
      const own = values.map((value, i) => (live[i] ? value : undefined));
      this.takeStep(offset, own, live, metadata);
    }
    this.endRows(offset, values.length, (i) => values[i] === DONE);
  }

  endSteps(offset: number, count: number): void {
    this.endRows(offset, count, () => true);
  }

  /** Steps and hooks that the caller reads while its rows run can't run again. */
  abstract readonly readsSteps: boolean;

  abstract hook(name: string, value: unknown): void;

  fail(error: unknown): void {
    if (!this.isOver) {
      this.end();
      this.queue?.leave(this);
      this.reject(isA(error, ServingUnavailableError) ? (this.overrun ?? error) : error);
    }
  }

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

  end(): void {
    this.isOver = true;
    this.stopWaiting?.();
    this.replyTurn?.end();
    this.ended?.();
  }

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
    this.fail(this.due.deadlineError());
  }

  /** Ignores a part whose rows a generator ended before the batch failed. */
  failPart(offset: number, count: number, error: unknown): void {
    if (this.isWaitingFor(offset, count)) {
      this.fail(error);
    }
  }

  isWaitingFor(offset: number, count: number): boolean {
    for (let row = offset; row < offset + count; row++) {
      if (this.isWaiting(row)) {
        return true;
      }
    }
    return false;
  }

  /** The part's rows run again, and the caller has received no step. */
  restart(offset: number, count: number): void {
    for (let row = offset; row < offset + count; row++) {
      this.missing += this.done?.delete(row) ? 1 : 0;
    }
  }

  isWaiting(row: number): boolean {
    return !this.isOver && !this.done?.has(row);
  }

  protected abstract takeOutput(offset: number, rows: Batch, metadata: unknown): void;
  /** @param live false for rows that have ended before */
  protected abstract takeStep(
    offset: number,
    values: readonly unknown[],
    live: readonly boolean[],
    metadata: unknown,
  ): void;
  /** The part may have had no steps. */
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
      // The request can be cancelled until its turn has come.
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

export interface RunOutput {
  readonly rows: Batch;
  readonly isOwn: boolean;
  readonly metadata: unknown;
}

export type Reply = CallMetadata & { readonly rows: Batch };

interface PartAnswer {
  readonly isSplit: false;
  readonly rows: Batch;
  readonly metadata: unknown;
  readonly offset: number;
}

export interface ReplyEnd<Answer> {
  /** The caller copies the output immediately, so it may be views of the batch's output. */
  readonly isLent: boolean;
  /** The output belongs to the caller. May throw. */
  answer(output: BatchOutput, said: CallMetadata): Answer;
  failed(error: unknown, terms: ResolvedCallOptions): void;
}

export class ReplyRequest<Answer = Reply> extends BatchRequest {
  readonly readsSteps = false;
  readonly reply: Promise<Answer>;
  /** Most requests have one answer and need no list. */
  private first: PartAnswer | undefined;
  private others: PartAnswer[] | undefined;
  /** Keyed by part. */
  private steps:
    Map<number, { readonly rows: readonly unknown[][]; metadata: unknown }> | undefined;
  private resolve!: (answer: Answer) => void;
  private refuse!: (error: unknown) => void;

  constructor(
    batch: Batch,
    lane: ServingLane,
    watch?: CallRecorder,
    terms?: ResolvedCallOptions,
    cost?: number,
    private readonly replyEnd?: ReplyEnd<Answer>,
  ) {
    super(batch, lane, watch, undefined, terms, cost);
    this.reply = new Promise((resolve, reject) => {
      this.resolve = resolve;
      this.refuse = reject;
    });
  }

  override takeRows(offset: number, output: RunOutput, start: number, end: number): void {
    const { replyEnd } = this;
    if (!replyEnd || this.replyTurn || end - start < this.size) {
      super.takeRows(offset, output, start, end);
      return;
    }
    const part = partOf(output, start, end, replyEnd);
    const { metadata } = output;
    this.end();
    try {
      this.resolve(replyEnd.answer(part, { isSplit: false, metadata }));
    } catch (error) {
      this.reject(error);
    }
  }

  hook(): void {}

  protected takeOutput(offset: number, rows: Batch, metadata: unknown): void {
    const answer: PartAnswer = { isSplit: false, offset, rows, metadata };
    if (!this.first) {
      this.first = answer;
    } else {
      (this.others ??= []).push(answer);
    }
  }

  override restart(offset: number, count: number): void {
    super.restart(offset, count);
    this.steps?.delete(offset);
  }

  protected takeStep(
    offset: number,
    values: readonly unknown[],
    live: readonly boolean[],
    metadata: unknown,
  ): void {
    this.steps ??= new Map();
    const steps = this.steps.get(offset) ?? { rows: emptyRows(values.length), metadata };
    values.forEach((value, i) => live[i] && steps.rows[i]!.push(value));
    steps.metadata = metadata ?? steps.metadata;
    this.steps.set(offset, steps);
  }

  protected endSteppedPart(offset: number, count: number): void {
    const { rows = emptyRows(count), metadata } = this.steps?.get(offset) ?? {};
    this.takeOutput(offset, Batch.ofValues(rows), metadata);
  }

  protected finish(): void {
    const { first, others, replyEnd } = this;
    try {
      const reply = others ? joined([first!, ...others]) : first!;
      this.resolve(replyEnd ? replyEnd.answer(reply.rows.release(), reply) : (reply as Answer));
    } catch (error) {
      this.reject(error);
    }
  }

  protected reject(error: unknown): void {
    this.replyEnd?.failed(error, this.terms);
    this.refuse(error);
  }
}

function partOf(
  { rows, isOwn }: RunOutput,
  start: number,
  end: number,
  { isLent }: Pick<ReplyEnd<unknown>, 'isLent'>,
): BatchOutput {
  if (rows.values) {
    return rows.values.slice(start, end);
  }
  const part = rows.slice(start, end);
  return isOwn ? (isLent ? part.view() : part.release()) : part.consume();
}

function joined(answers: PartAnswer[]): Reply {
  answers.sort((a, b) => a.offset - b.offset);
  const rows = asOutput(() => Batch.merge(answers.map((answer) => answer.rows)));
  const metadata = answers.map(({ offset, rows: part, metadata: said }) => ({
    offset,
    rows: part.size,
    metadata: said,
  }));
  return { isSplit: true, rows, metadata };
}

function emptyRows(count: number): unknown[][] {
  return Array.from({ length: count }, () => []);
}

/**
 * Views, if `isLent`, must be copied immediately.
 *
 * @throws the Error that a batch function returned in place of a row's result
 */
export function releaseOutput(rows: Batch, isLent = false): BatchOutput {
  return withoutErrors(isLent ? rows.view() : rows.release());
}

/** @throws the Error that a batch function returned in place of a row's result */
export function withoutErrors(output: BatchOutput): BatchOutput {
  const error = Array.isArray(output) ? output.find(isError) : undefined;
  if (error) {
    throw noteRun(error);
  }
  return output;
}

/** Copies for one of several callers. */
export function copyOutput(rows: Batch): BatchOutput {
  if (!rows.isPlain) {
    return rows.consume();
  }
  const output = releaseOutput(rows);
  return Array.isArray(output) ? output.map((row) => deepCopy(row)) : output;
}
