/** Consecutive slow runs before the warning. A single one may be a pause of the machine. */
const SLOW_RUNS = 3;

/** Warns once if runs in the application's own thread block its event loop for too long. */
export class BlockingWatch {
  private slowRuns = 0;
  private hasWarned = false;

  constructor(
    /** Milliseconds. */
    private readonly limit: number,
    /** Logs the warning; the line continues "Serving ...". */
    private readonly warn: (line: string) => void,
  ) {}

  observe(rows: number, milliseconds: number): void {
    this.slowRuns = milliseconds > this.limit ? this.slowRuns + 1 : 0;
    if (this.slowRuns === SLOW_RUNS && !this.hasWarned) {
      this.hasWarned = true;
      this.warn(
        `held the event loop for ${milliseconds.toFixed(1)} ms with a run of ${rows} rows: the ` +
          `third run in a row above blockingLimit, which is ${this.limit} ms. Nothing else of the ` +
          "application runs meanwhile; use isolation: 'thread', lower batchSize, or raise " +
          'blockingLimit',
      );
    }
  }
}
