import { Queue } from './queue.js';
import { leave, type Source } from './source.js';

/** A piece of work that has been started. */
export interface Started {
  /** What it counts for in the window. */
  readonly size: number;
  readonly cost: number;
  /** It has ended, and nothing of it is left to do. */
  readonly isOver: boolean;
  /** Ends it; nothing that it gives is waited for. */
  fail(error: unknown): void;
}

export interface PullAheadOptions<Value, Piece extends Started> {
  readonly source: Source<Value>;
  /** The most that may be under way before more is pulled. */
  readonly window: number;
  /** The source may go on for ever. */
  readonly isOpen: boolean;
  /** What the work for the value will cost. */
  readonly costOf: (value: Value) => number;
  /** The most that may be under way at that cost; what is dearer is under way alone. */
  readonly mostCost: number;
  /** Starts the work for one value. */
  readonly start: (value: Value, cost: number) => Piece;
}

/**
 * Pulls values from a source and starts their work while less than a window of it is under way, and
 * gives the pieces of work in their order. The window moves when the reader asks for the next
 * piece: a slow reader holds back its own source.
 *
 * Values of a source that does not make wait are started at once, so that no other call comes
 * between them.
 */
export class PullAhead<Value, Piece extends Started> implements AsyncIterator<Piece, undefined> {
  private readonly pieces = new Queue<Piece>();
  /** What has been started and not been read to its end, the oldest first. */
  private readonly underWay: Piece[] = [];
  private size = 0;
  private cost = 0;
  /** Goes on with what was too dear beside that which was under way. */
  private goOn: (() => void) | undefined;
  private taken: Piece | undefined;
  private isPulling = false;
  private hasEnded = false;
  /** What is done at the end. */
  private readonly endings: (() => void)[] = [];

  constructor(private readonly options: PullAheadOptions<Value, Piece>) {}

  get isOpen(): boolean {
    return this.options.isOpen;
  }

  /**
   * Whether the source has ended and all that was started is over: there is nothing left but to
   * read it.
   */
  get isDone(): boolean {
    return this.hasEnded && this.underWay.every(({ isOver }) => isOver);
  }

  /** Calls back once it is stopped. */
  onStop(ending: () => void): void {
    this.endings.push(ending);
  }

  next(): Promise<IteratorResult<Piece, undefined>> {
    if (this.taken) {
      this.underWay.shift();
      this.size -= this.taken.size;
      this.cost -= this.taken.cost;
      this.taken = undefined;
      this.goOn?.();
    }
    void this.pull();
    return this.pieces.next().then((result) => {
      this.taken = result.value;
      return result;
    });
  }

  /** Pulls no more and ends what is under way; with an error, who asks for more gets it. */
  stop(reason?: { readonly error: unknown }): void {
    if (reason) {
      this.pieces.fail(reason.error);
    } else {
      this.pieces.end();
    }
    this.leave();
    this.underWay.forEach((piece) =>
      piece.fail(reason?.error ?? new Error('Nobody waits for this any more')),
    );
    this.endings.splice(0).forEach((ending) => ending());
  }

  /** Pulls no more; what is under way goes on, and who asks for more gets the error. */
  finish(error: unknown): void {
    this.pieces.fail(error);
    this.leave();
  }

  private leave(): void {
    if (!this.hasEnded) {
      this.hasEnded = true;
      leave(this.options.source);
    }
  }

  private isTooDear(cost: number): boolean {
    return !this.hasEnded && this.underWay.length > 0 && this.cost + cost > this.options.mostCost;
  }

  private async pull(): Promise<void> {
    const { source, window, costOf, start } = this.options;
    if (this.isPulling) {
      return;
    }
    this.isPulling = true;
    try {
      while (!this.hasEnded && this.size < window) {
        const result = source.next();
        const { done, value } = result instanceof Promise ? await result : result;
        if (this.hasEnded) {
          return;
        }
        if (done) {
          this.hasEnded = true;
          this.pieces.end();
          return;
        }
        const cost = costOf(value);
        while (this.isTooDear(cost)) {
          await new Promise<void>((resolve) => (this.goOn = resolve));
        }
        if (this.hasEnded) {
          return;
        }
        const piece = start(value, cost);
        this.underWay.push(piece);
        this.size += piece.size;
        this.cost += piece.cost;
        this.pieces.push(piece);
      }
    } catch (error) {
      this.leave();
      this.pieces.fail(error);
    } finally {
      this.isPulling = false;
    }
  }
}
