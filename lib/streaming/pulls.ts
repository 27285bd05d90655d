import { PullAhead, type PullAheadOptions, type Started } from './pull-ahead.js';

type Pulled = Pick<PullAhead<never, never>, 'stop' | 'finish' | 'isOpen' | 'isDone'>;

/** The pulls of a serving that are under way. */
export class Pulls {
  private readonly going = new Set<Pulled>();
  private allEnded: (() => void) | undefined;
  /** Calls back for a reader that was garbage-collected. */
  private readonly dropped = new FinalizationRegistry<() => void>((end) => end());

  begin<Value, Piece extends Started>(
    options: PullAheadOptions<Value, Piece>,
  ): PullAhead<Value, Piece> {
    const pulled = new PullAhead(options);
    this.going.add(pulled);
    return pulled;
  }

  /**
   * An iterator of the pieces for a reader that may be dropped without `return()`: nothing here
   * refers to the iterator. When it is garbage-collected, the pull ends and `onDropped` is called.
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

  /** Ends the pull. With an error, later reads reject with it. */
  end(pulled: Pulled, reason?: { readonly error: unknown }): void {
    // The error can refer to the reader by its stack, and would keep it in memory.
    this.dropped.unregister(pulled);
    pulled.stop(reason);
    this.going.delete(pulled);
    if (this.going.size === 0) {
      this.allEnded?.();
    }
  }

  /** Pulls nothing more; later reads reject with the error. Work under way continues. */
  finishAll(error: unknown): void {
    this.going.forEach((pulled) => pulled.finish(error));
  }

  /** Ends all pulls; later reads reject with the error. */
  endAll(error: unknown): void {
    this.going.forEach((pulled) => pulled.stop({ error }));
  }

  get size(): number {
    return this.going.size;
  }

  /**
   * Stops sources that may never end, and resolves when the others have ended. A pull whose work is
   * done is not waited for: its reader can read the rest at any time.
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
