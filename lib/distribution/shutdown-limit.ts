/** The time that the shutdown of a node may take. */
export class ShutdownLimit {
  /** Resolves when the time is over and `reach` has been called. */
  readonly reached: Promise<void>;
  private resolve!: () => void;
  private clock: NodeJS.Timeout | undefined;
  private endsAt = Infinity;

  constructor() {
    this.reached = new Promise((resolve) => (this.resolve = resolve));
  }

  /** Milliseconds until the limit. */
  get left(): number {
    return Math.max(0, this.endsAt - performance.now());
  }

  /** Starts the clock. */
  begin(milliseconds: number, reach: () => void): void {
    this.endsAt = performance.now() + milliseconds;
    this.clock = setTimeout(() => {
      reach();
      this.resolve();
    }, milliseconds);
  }

  /** Resolves when the work is done, or the limit is reached. */
  async within(work: Promise<unknown>): Promise<void> {
    await Promise.race([work, this.reached]);
  }

  end(): void {
    clearTimeout(this.clock);
  }
}
