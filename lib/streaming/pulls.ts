import { PullAhead, type PullAheadOptions, type Started } from './pull-ahead.js';

type Pulled = Pick<PullAhead<never, never>, 'stop' | 'finish' | 'isOpen'>;

/** The pulls of a serving that are going on. */
export class Pulls {
  private readonly going = new Set<Pulled>();
  private allEnded: (() => void) | undefined;

  begin<Value, Piece extends Started>(options: PullAheadOptions<Value, Piece>): PullAhead<Value, Piece> {
    const pulled = new PullAhead(options);
    this.going.add(pulled);
    return pulled;
  }

  /** Nobody waits for more of it; with an error, who asks gets that. */
  end(pulled: Pulled, reason?: { readonly error: unknown }): void {
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

  /** Pulls nothing more of sources that may go on for ever, and resolves when the others have ended, too. */
  async close(error: unknown): Promise<void> {
    this.going.forEach((pulled) => pulled.isOpen && pulled.finish(error));
    if (this.going.size > 0) {
      await new Promise<void>((resolve) => (this.allEnded = resolve));
    }
  }
}
