import type { Counters } from '../events/event-hub.js';
import { isError } from '../errors.js';
import { releaseOutput } from './batch-run.js';
import { unwrap } from './caller-side.js';
import type { Reply, ReplyEnd } from './request.js';
import type { ResolvedCallOptions } from './resolved-call-options.js';

/** Ends calls whose answer is the output itself, and counts them. */
export class AnswerEnd implements ReplyEnd<unknown> {
  constructor(
    private readonly counters: Counters,
    /** The input was one plain value, so the answer is its one result. */
    readonly single: boolean,
    /** The caller copies the output at once. */
    private readonly isLent = false,
  ) {}

  answer({ rows }: Reply): unknown {
    const answer = unwrap(this, releaseOutput(rows, this.isLent));
    this.counters.answered++;
    return answer;
  }

  answerValue(value: unknown): unknown {
    if (isError(value)) {
      throw value;
    }
    this.counters.answered++;
    return this.single ? value : [value];
  }

  failed(error: unknown, { signal }: ResolvedCallOptions): void {
    this.counters.ended({ error }, signal);
  }
}
