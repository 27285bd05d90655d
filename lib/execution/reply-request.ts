import { Batch } from '../batch/batch.js';
import type { ResolvedCallOptions } from './resolved-call-options.js';
import type { CallRecorder } from '../events/call-recorder.js';
import type { ServingLane } from './lanes.js';
import type { CallMetadata } from '../definition/reply.js';
import { asOutput } from '../batch/container.js';
import { BatchRequest } from './request.js';

/** The output rows of a request, and the metadata of the batches in which they ran. */
export type Reply = CallMetadata & { readonly rows: Batch };

/** The output rows of one batch, for the rows of the request from `offset` on. */
interface Answer {
  readonly isSplit: false;
  readonly rows: Batch;
  readonly metadata: unknown;
  readonly offset: number;
}

/** A request whose caller waits for all of the output. */
export class ReplyRequest extends BatchRequest {
  readonly reply: Promise<Reply>;
  /** Most requests have one answer and need no list. */
  private first: Answer | undefined;
  private others: Answer[] | undefined;
  /** The steps of generators, by part and row, and the last metadata of each. */
  private steps:
    Map<number, { readonly rows: readonly unknown[][]; metadata: unknown }> | undefined;
  private resolve!: (reply: Reply) => void;
  protected reject!: (error: unknown) => void;

  constructor(
    batch: Batch,
    lane: ServingLane,
    watch?: CallRecorder,
    terms?: ResolvedCallOptions,
    cost?: number,
  ) {
    super(batch, lane, watch, undefined, terms, cost);
    this.reply = new Promise((resolve, reject) => {
      this.resolve = resolve;
      this.reject = reject;
    });
  }

  hook(): void {}

  protected takeOutput(offset: number, rows: Batch, metadata: unknown): void {
    const answer: Answer = { isSplit: false, offset, rows, metadata };
    if (!this.first) {
      this.first = answer;
    } else {
      (this.others ??= []).push(answer);
    }
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
    const first = this.first!;
    if (!this.others) {
      this.resolve(first);
      return;
    }
    const answers = [first, ...this.others].toSorted((a, b) => a.offset - b.offset);
    try {
      const rows = asOutput(() => Batch.merge(answers.map((answer) => answer.rows)));
      const metadata = answers.map(({ offset, rows: part, metadata: said }) => ({
        offset,
        rows: part.size,
        metadata: said,
      }));
      this.resolve({ isSplit: true, rows, metadata });
    } catch (error) {
      this.reject(error);
    }
  }
}

function emptyRows(count: number): unknown[][] {
  return Array.from({ length: count }, () => []);
}
