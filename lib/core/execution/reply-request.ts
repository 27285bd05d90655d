import { Batch } from '../batch/batch.js';
import { asOutput } from '../batch/container.js';
import type { CallMetadata } from '../definition/reply.js';
import type { CallRecorder } from '../events/call-recorder.js';
import type { BatchOutput } from '../partitions/batch-function.js';
import type { ServingLane } from './lanes.js';
import { BatchRequest, type RunOutput } from './request.js';
import type { ResolvedCallOptions } from './resolved-call-options.js';

/** The output rows of a request, and the metadata of the batches in which they ran. */
export type Reply = CallMetadata & { readonly rows: Batch };

/** The output rows of one batch, for the rows of the request from `offset` on. */
interface PartAnswer {
  readonly isSplit: false;
  readonly rows: Batch;
  readonly metadata: unknown;
  readonly offset: number;
}

/** Makes the answer of a call from the reply to its request. */
export interface ReplyEnd<Answer> {
  /** The caller copies the output at once: it may be views of the output of its batch. */
  readonly isLent: boolean;
  /** The answer made of the output, which belongs to the caller; may throw. */
  answer(output: BatchOutput, said: CallMetadata): Answer;
  /** Called before the request is rejected. */
  failed(error: unknown, terms: ResolvedCallOptions): void;
}

/** A request whose caller waits for all of the output. */
export class ReplyRequest<Answer = Reply> extends BatchRequest {
  readonly reply: Promise<Answer>;
  /** Most requests have one answer and need no list. */
  private first: PartAnswer | undefined;
  private others: PartAnswer[] | undefined;
  /** The steps of generators, by part and row, and the last metadata of each. */
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
    /** Without it the answer is the reply itself. */
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
    this.end();
    const { metadata } = output;
    this.resolveWith(() => replyEnd.answer(part, { isSplit: false, metadata }));
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
    this.resolveWith(() => {
      const reply = others ? joined([first!, ...others]) : first!;
      return replyEnd ? replyEnd.answer(reply.rows.release(), reply) : (reply as Answer);
    });
  }

  protected reject(error: unknown): void {
    this.replyEnd?.failed(error, this.terms);
    this.refuse(error);
  }

  private resolveWith(answer: () => Answer): void {
    try {
      this.resolve(answer());
    } catch (error) {
      this.reject(error);
    }
  }
}

/** Rows of the output in memory of their own, or as views if that suffices. */
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

/** The output of all batches of a request, in the order of its rows. */
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
