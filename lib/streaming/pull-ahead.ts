import { Queue } from './queue.js';
import { leave, type Source } from './source.js';

/** Work that has started. */
export interface Started {
  /** Its share of the window. */
  readonly size: number;
  readonly cost: number;
  /** It has ended completely. */
  readonly isOver: boolean;
  /** Ends it; its result is dropped. */
  fail(error: unknown): void;
}

export interface PullAheadOptions<Value, Piece extends Started> {
  readonly source: Source<Value>;
  /** The window: work under way before more is pulled. */
  readonly window: number;
  /** The source may never end. */
  readonly isOpen: boolean;
  /** The cost of the work for the value. */
  readonly costOf: (value: Value) => number;
  /** The largest cost of the work under way. A value that costs more runs alone. */
  readonly mostCost: number;
  /** Starts the work for a value. */
  readonly start: (value: Value, cost: number) => Piece;
}

/**
 * Pulls values from a source and starts their work while less than a window is under way. Returns
 * the pieces of work in order. The window moves when the reader asks for the next piece, so a slow
 * reader holds back its source.
 *
 * Values of a synchronous source start at once, so that no other call comes between them.
 */
export class PullAhead<Value, Piece extends Started> implements AsyncIterator<Piece, undefined> {
  private readonly pieces = new Queue<Piece>();
  /** The started pieces that were not read to the end, the oldest first. */
  private readonly underWay: Piece[] = [];
  private size = 0;
  private cost = 0;
  /** Continues with a value whose cost did not fit. */
  private goOn: (() => void) | undefined;
  private taken: Piece | undefined;
  private isPulling = false;
  private hasEnded = false;
  /** Called at the end. */
  private readonly endings: (() => void)[] = [];

  constructor(private readonly options: PullAheadOptions<Value, Piece>) {}

  get isOpen(): boolean {
    return this.options.isOpen;
  }

  /** Whether the source has ended and all started work is over: only reading is left. */
  get isDone(): boolean {
    return this.hasEnded && this.underWay.every(({ isOver }) => isOver);
  }

  /** Calls back when it is stopped. */
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

  /** Pulls no more and ends the work under way. With an error, later reads reject with it. */
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

  /** Pulls no more. Work under way continues, and later reads reject with the error. */
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

  /** Whether all work is done, which readers may still read. */
  get isIdle(): boolean {
    return [...this.going].every(({ isDone }) => isDone);
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
