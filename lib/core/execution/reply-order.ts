import { type Linked, LinkedList } from '../batching/queued-request.js';

/** A call's place among its lane's calls. */
export interface ReplyTurn {
  /** Calls back when all calls before it have ended, or immediately if they have. */
  ready(answer: () => void): void;
  /** Calls behind it no longer wait for it. */
  end(): void;
}

interface Turn extends Linked<Turn> {
  answer: (() => void) | undefined;
  hasEnded: boolean;
}

/**
 * Replies leave in their calls' order. A call that fails, is cancelled or is late ends immediately,
 * and releases its turn.
 */
export class ReplyOrder {
  private readonly turns = new LinkedList<Turn>();

  join(): ReplyTurn {
    const turn: Turn = { answer: undefined, hasEnded: false, before: undefined, after: undefined };
    this.turns.push(turn);
    return {
      ready: (answer) => {
        turn.answer = answer;
        this.release();
      },
      end: () => {
        turn.hasEnded = true;
        // A call with an answer waits for others, or ends because it is answered.
        if (!turn.answer) {
          this.release();
        }
      },
    };
  }

  private release(): void {
    for (let { first } = this.turns; first; { first } = this.turns) {
      const { hasEnded, answer } = first;
      if (!hasEnded && !answer) {
        return;
      }
      // Removed before it is answered, which ends it.
      this.turns.remove(first);
      if (!hasEnded) {
        answer!();
      }
    }
  }
}
