import type { CallMetadata } from '../definition/reply.js';
import type { Counters } from '../events/event-hub.js';
import type { BatchOutput } from '../partitions/batch-function.js';
import { unwrap } from './caller-side.js';
import { withoutErrors } from './output-rows.js';
import type { ReplyEnd } from './reply-request.js';
import type { ResolvedCallOptions } from './resolved-call-options.js';

/** Ends calls whose answer is the output itself, and counts them. */
export class AnswerEnd implements ReplyEnd<unknown> {
  constructor(
    private readonly counters: Counters,
    /** The input was one plain value, so the answer is its one result. */
    readonly single: boolean,
    readonly isLent = false,
  ) {}

  answer(output: BatchOutput): unknown {
    const answer = unwrap(this, withoutErrors(output));
    this.counters.answered++;
    return answer;
  }

  failed(error: unknown, { signal }: ResolvedCallOptions): void {
    this.counters.ended({ error }, signal);
  }
}

/** The output of a call, and the metadata of its batches. */
export interface CallOutput {
  readonly output: BatchOutput;
  readonly said: CallMetadata;
}

/** Ends the rows of a call whose answer is made in further steps, which count it. */
export const outputEnd: ReplyEnd<CallOutput> = {
  isLent: false,
  answer: (output, said) => ({ output: withoutErrors(output), said }),
  failed: () => {},
};
