import { Fifo } from '../batching/fair-queue.js';

/** The place of a call among those of its lane. */
export interface ReplyTurn {
  /** Calls back when all calls before it have ended, at once if they have. */
  ready(answer: () => void): void;
  /** The call has ended: those behind it no longer wait for it. */
  end(): void;
}

/**
 * Replies that leave in the order in which their calls joined. A call that ends in another way (it
 * fails, is cancelled, or is late) does so at once, and releases its turn.
 */
export class ReplyOrder {
  private readonly turns = new Fifo<{ answer?: () => void; hasEnded: boolean }>();

  join(): ReplyTurn {
    const turn: { answer?: () => void; hasEnded: boolean } = { hasEnded: false };
    this.turns.push(turn);
    return {
      ready: (answer) => {
        turn.answer = answer;
        this.release();
      },
      end: () => {
        turn.hasEnded = true;
        // A call with an answer waits for others, or ends since it is answered.
        if (!turn.answer) {
          this.release();
        }
      },
    };
  }

  private release(): void {
    for (let first = this.turns.peek(); first; first = this.turns.peek()) {
      if (!first.hasEnded && !first.answer) {
        return;
      }
      // Removed before it is answered, which ends it.
      this.turns.shift();
      if (!first.hasEnded) {
        first.answer!();
      }
    }
  }
}
