import { PullAhead, type PullAheadOptions, type Started } from './pull-ahead.js';

type Pulled = Pick<PullAhead<never, never>, 'stop' | 'finish' | 'isOpen' | 'isDone'>;

/** The pulls of a serving that are going on. */
export class Pulls {
  private readonly going = new Set<Pulled>();
  private allEnded: (() => void) | undefined;
  /** Calls back for a reader that nothing refers to any more. */
  private readonly dropped = new FinalizationRegistry<() => void>((end) => end());

  begin<Value, Piece extends Started>(
    options: PullAheadOptions<Value, Piece>,
  ): PullAhead<Value, Piece> {
    const pulled = new PullAhead(options);
    this.going.add(pulled);
    return pulled;
  }

  /**
   * The pieces for a reader that may be dropped without `return()`: nothing here refers to the
   * iterator. What is going on for it then is ended, and `onDropped` called.
   */
  readerOf<Value, Piece extends Started>(
    pulled: PullAhead<Value, Piece>,
    onDropped: () => void,
  ): AsyncIterator<Piece, undefined> {
    const reader = { next: () => pulled.next() };
    const end = (): void => {
      this.end(pulled);
      onDropped();
    };
    this.dropped.register(reader, end, pulled);
    return reader;
  }

  /** Nobody waits for more of it; with an error, who asks gets that. */
  end(pulled: Pulled, reason?: { readonly error: unknown }): void {
    // Its error can refer to the reader, by its stack, and would keep it in memory.
    this.dropped.unregister(pulled);
    pulled.stop(reason);
    this.going.delete(pulled);
    if (this.going.size === 0) {
      this.allEnded?.();
    }
  }

  /** Pulls nothing more, and tells those who ask for more the error; what is under way goes on. */
  finishAll(error: unknown): void {
    this.going.forEach((pulled) => pulled.finish(error));
  }

  /** Ends all of it: who asks for more gets the error. */
  endAll(error: unknown): void {
    this.going.forEach((pulled) => pulled.stop({ error }));
  }

  get size(): number {
    return this.going.size;
  }

  /**
   * Pulls nothing more of sources that may go on for ever, and resolves when the others have ended,
   * too. Those of which all work is done are not waited for: their readers can read the rest at any
   * time.
   */
  async close(error: unknown): Promise<void> {
    for (const pulled of this.going) {
      if (pulled.isOpen) {
        pulled.finish(error);
      } else if (pulled.isDone) {
        this.going.delete(pulled);
      }
    }
    if (this.going.size > 0) {
      await new Promise<void>((resolve) => (this.allEnded = resolve));
    }
  }
}
