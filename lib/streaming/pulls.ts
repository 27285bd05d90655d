import { PullAhead, type PullAheadOptions, type Started } from './pull-ahead.js';

/** The pulls of a serving that are going on. */
export class Pulls {
  private readonly going = new Set<Pick<PullAhead<never, never>, 'stop'>>();
  private allEnded: (() => void) | undefined;

  begin<Value, Piece extends Started>(options: PullAheadOptions<Value, Piece>): PullAhead<Value, Piece> {
    const pulled = new PullAhead(options);
    this.going.add(pulled);
    return pulled;
  }

  /** Nobody will ask for more of it. */
  end(pulled: Pick<PullAhead<never, never>, 'stop'>): void {
    pulled.stop();
    this.going.delete(pulled);
    if (this.going.size === 0) {
      this.allEnded?.();
    }
  }

  stopAll(error: unknown): void {
    this.going.forEach((pulled) => pulled.stop({ error }));
  }

  /** Resolves when none goes on any more. */
  async whenEnded(): Promise<void> {
    if (this.going.size > 0) {
      await new Promise<void>((resolve) => (this.allEnded = resolve));
    }
  }
}
