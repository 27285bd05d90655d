import { Batch } from '../batch/batch.js';
import type { Request, Row } from '../batching/batcher.js';
import { isError, SlowConsumerError } from '../errors.js';
import { type BatchOutput, DONE } from '../partitions/partition.js';
import { Queue } from '../streaming/queue.js';
import type { CallWatch } from './call-watch.js';
import type { ServingLane } from './lanes.js';
import { asOutput } from './output.js';

/** A run of consecutive rows of one request that found themselves in the same batch. */
export interface Part {
  readonly request: BatchRequest;
  /** Where the run starts in its request. */
  readonly offset: number;
  readonly count: number;
}

export interface RequestOptions {
  readonly batch: Batch;
  readonly lane: ServingLane;
  /** The hooks that the caller asked for; then all rows run in one batch. */
  readonly hooks?: readonly string[] | undefined;
  readonly watch?: CallWatch | undefined;
}

/** Rows of a call on their way through the batcher: they may run in several batches, and finish in any order. */
export abstract class BatchRequest implements Request {
  arrivedAt = 0;
  waiting = 0;
  isOver = false;
  /** Where its rows wait, if they do. */
  queue: { leave(request: BatchRequest): void } | undefined;
  readonly batch: Batch;
  readonly lane: ServingLane;
  readonly hooks: readonly string[] | undefined;
  readonly watch: CallWatch | undefined;
  private missing: number;
  /** The rows that a generator has said to be over. */
  private done: Set<number> | undefined;

  constructor({ batch, lane, hooks, watch }: RequestOptions) {
    this.batch = batch;
    this.lane = lane;
    this.hooks = hooks;
    this.watch = watch;
    this.missing = batch.size;
  }

  get size(): number {
    return this.batch.size;
  }

  get whole(): boolean {
    return this.hooks !== undefined;
  }

  /** Takes the output rows for the part at `offset`; with the last part the request is over. */
  answer(offset: number, rows: Batch, metadata: unknown): void {
    if (!this.isOver) {
      this.takeOutput(offset, rows, metadata);
      this.settle(rows.size);
    }
  }

  /** Takes what a generator has yielded for the rows from `offset` on. */
  step(offset: number, values: readonly unknown[], metadata: unknown): void {
    const isLive = (value: unknown, i: number): boolean => value !== DONE && this.isWaiting(offset + i);
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

  /** The generator has ended, and with it the rows of the part. */
  endSteps(offset: number, count: number): void {
    this.endRows(offset, count, () => true);
  }

  /** Takes the value of a hook for all rows. */
  abstract hook(name: string, value: unknown): void;

  /** Answers the call with the error. */
  fail(error: unknown): void {
    if (!this.isOver) {
      this.isOver = true;
      this.queue?.leave(this);
      this.reject(error);
    }
  }

  /** The batch with the part has failed; where a generator had said all of these rows to be over, they are not concerned. */
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

  /** All that there is for the part. */
  protected abstract takeOutput(offset: number, rows: Batch, metadata: unknown): void;
  /** `values` has an entry for every row of the part; where `live` is false, the row was over already. */
  protected abstract takeStep(offset: number, values: readonly unknown[], live: readonly boolean[], metadata: unknown): void;
  /** There will be no more steps for the part, of which there may have been none. */
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
    if (this.missing === 0) {
      this.isOver = true;
      this.finish();
    }
  }
}

/** The output rows of a request, batch by batch in their order. */
export interface Reply {
  readonly pieces: readonly Batch[];
  readonly metadata: unknown;
}

/** A request whose caller waits for all of the output. */
export class ReplyRequest extends BatchRequest {
  readonly reply: Promise<Reply>;
  private readonly answers: { offset: number; rows: Batch; metadata: unknown }[] = [];
  /** What generators have yielded, by part and row, and what they said beside the last of it. */
  private steps: Map<number, { readonly rows: readonly unknown[][]; metadata: unknown }> | undefined;
  private resolve!: (reply: Reply) => void;
  protected reject!: (error: unknown) => void;

  constructor(options: RequestOptions) {
    super(options);
    this.reply = new Promise((resolve, reject) => {
      this.resolve = resolve;
      this.reject = reject;
    });
  }

  hook(): void {}

  protected takeOutput(offset: number, rows: Batch, metadata: unknown): void {
    this.answers.push({ offset, rows, metadata });
  }

  protected takeStep(offset: number, values: readonly unknown[], live: readonly boolean[], metadata: unknown): void {
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
    const { answers } = this;
    if (answers.length > 1) {
      answers.sort((a, b) => a.offset - b.offset);
    }
    this.resolve({ pieces: answers.map(({ rows }) => rows), metadata: answers[0]!.metadata });
  }
}

function emptyRows(count: number): unknown[][] {
  return Array.from({ length: count }, () => []);
}

/** What a request has to say, in the order of its rows. */
export type RequestEvent =
  | { readonly offset: number; readonly rows: Batch; readonly metadata: unknown }
  | { readonly hook: string; readonly value: unknown };

/** The most steps and hooks that wait, for their consumer or for earlier rows: the batch goes on for others and cannot wait. */
const EVENTS_AHEAD = 1024;

/** A request whose caller wants the output as it comes, in the order of its rows. */
export class StreamRequest extends BatchRequest {
  readonly events = new Queue<RequestEvent>();
  /** The offset of the part whose events are passed on; those of later parts are held. */
  private turn = 0;
  private readonly held = new Map<number, { readonly events: RequestEvent[]; count: number }>();
  /** The number of events of later parts. */
  private ahead = 0;

  hook(hook: string, value: unknown): void {
    this.putUnlessSlow(0, { hook, value });
  }

  protected takeOutput(offset: number, rows: Batch, metadata: unknown): void {
    this.put(offset, { offset, rows, metadata });
    this.endPart(offset, rows.size);
  }

  protected takeStep(offset: number, values: readonly unknown[], _live: readonly boolean[], metadata: unknown): void {
    this.putUnlessSlow(offset, { offset, rows: Batch.ofValues(values), metadata });
  }

  protected endSteppedPart(offset: number, count: number): void {
    this.endPart(offset, count);
  }

  protected finish(): void {
    this.events.end();
  }

  protected reject(error: unknown): void {
    this.events.fail(error);
  }

  private endPart(offset: number, count: number): void {
    this.heldAt(offset).count = count;
    for (let part = this.held.get(this.turn); part; part = this.held.get(this.turn)) {
      this.ahead -= part.events.length;
      part.events.splice(0).forEach((event) => this.events.push(event));
      if (part.count === 0) {
        return;
      }
      this.held.delete(this.turn);
      this.turn += part.count;
    }
  }

  private putUnlessSlow(offset: number, event: RequestEvent): void {
    if (this.events.size + this.ahead < EVENTS_AHEAD) {
      this.put(offset, event);
    } else {
      this.fail(
        new SlowConsumerError(
          `${EVENTS_AHEAD} events of a stream wait for their consumer, or for those of earlier rows, and the batch cannot wait for him; ` +
            'read faster, or collect the events',
        ),
      );
    }
  }

  private put(offset: number, event: RequestEvent): void {
    if (offset === this.turn) {
      this.events.push(event);
    } else {
      this.heldAt(offset).events.push(event);
      this.ahead++;
    }
  }

  private heldAt(offset: number): { readonly events: RequestEvent[]; count: number } {
    let part = this.held.get(offset);
    if (!part) {
      part = { events: [], count: 0 };
      this.held.set(offset, part);
    }
    return part;
  }
}

/** The rows in storage of their own; throws the error that a batch function put in place of a row's result. */
export function joinOutput(pieces: readonly Batch[]): BatchOutput {
  const output = asOutput(() => Batch.merge(pieces)).release();
  const error = Array.isArray(output) ? output.find(isError) : undefined;
  if (error) {
    throw error;
  }
  return output;
}

/** The rows of a batch as runs of the requests they belong to, in their order. */
export function partsOf(rows: readonly Row<BatchRequest>[]): Part[] {
  const parts: Part[] = [];
  for (let start = 0; start < rows.length;) {
    const { request, index } = rows[start]!;
    let end = start + 1;
    while (end < rows.length && rows[end]!.request === request) {
      end++;
    }
    parts.push({ request, offset: index, count: end - start });
    start = end;
  }
  return parts;
}
