import { Queue } from './queue.js';
import { leave, type Source } from './source.js';

export interface Started {
  readonly size: number;
  readonly cost: number;
  readonly isOver: boolean;
  fail(error: unknown): void;
  onEnd(callback: () => void): void;
}

interface PullAheadOptions<Value, Piece extends Started> {
  readonly source: Source<Value>;
  /** Limit of work under way, beyond which nothing is pulled. */
  readonly window: number;
  readonly isOpen: boolean;
  readonly costOf: (value: Value) => number;
  /** A value that costs more runs alone. */
  readonly mostCost: number;
  readonly start: (value: Value, cost: number) => Piece;
  /** Called, perhaps more than once, when only reading is left. */
  readonly onDone?: (() => void) | undefined;
}

/**
 * Pulls values and starts their work while less than a window is under way; returns the pieces in
 * order. A slow reader holds back its source. A synchronous source's values start immediately, so
 * that no other call comes between them.
 */
export class PullAhead<Value, Piece extends Started> implements AsyncIterator<Piece, undefined> {
  private readonly pieces = new Queue<Piece>();
  /** Oldest first, until read to the end. */
  private readonly underWay: Piece[] = [];
  private size = 0;
  private cost = 0;
  /** Retries a value whose cost did not fit. */
  private goOn: (() => void) | undefined;
  private taken: Piece | undefined;
  private isPulling = false;
  private hasEnded = false;
  private readonly endings: (() => void)[] = [];

  constructor(private readonly options: PullAheadOptions<Value, Piece>) {}

  get isOpen(): boolean {
    return this.options.isOpen;
  }

  get isDone(): boolean {
    return this.hasEnded && this.underWay.every(({ isOver }) => isOver);
  }

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

  /** Also ends the work under way. With an error, later reads reject with it. */
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

  /** Work under way continues; later reads reject. */
  finish(error: unknown): void {
    this.pieces.fail(error);
    this.leave();
  }

  private leave(): void {
    if (!this.hasEnded) {
      this.hasEnded = true;
      leave(this.options.source);
      // Ends a pull that waits for room, and drops its value.
      this.goOn?.();
      this.checkDone();
    }
  }

  private checkDone(): void {
    if (this.isDone) {
      this.options.onDone?.();
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
          this.checkDone();
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
        piece.onEnd(() => this.checkDone());
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

export class Pulls {
  private readonly going = new Set<Pulled>();
  private allEnded: (() => void) | undefined;
  private readonly dropped = new FinalizationRegistry<() => void>((end) => end());

  begin<Value, Piece extends Started>(
    options: PullAheadOptions<Value, Piece>,
  ): PullAhead<Value, Piece> {
    const pulled = new PullAhead(options);
    this.going.add(pulled);
    return pulled;
  }

  /**
   * Keeps no reference to the reader, which may be dropped without `return()`: its garbage
   * collection ends the pull.
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

  end(pulled: Pulled, reason?: { readonly error: unknown }): void {
    // The error's stack can refer to the reader and keep it in memory.
    this.dropped.unregister(pulled);
    pulled.stop(reason);
    this.going.delete(pulled);
    if (this.going.size === 0) {
      this.allEnded?.();
    }
  }

  finishAll(error: unknown): void {
    this.going.forEach((pulled) => pulled.finish(error));
  }

  endAll(error: unknown): void {
    this.going.forEach((pulled) => pulled.stop({ error }));
  }

  get size(): number {
    return this.going.size;
  }

  /** Stops sources that may never end, and waits for others, unless only reading is left. */
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
