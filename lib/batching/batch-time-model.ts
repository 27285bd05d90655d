/** How much of what was learned still counts after one more batch. */
const MEMORY = 0.95;

/** Batches before calls are refused by what was learned. */
const BATCHES_TO_BELIEVE = 8;

/**
 * How long batches take by their size: a straight line `ms = a + b * rows` through those that have
 * run, fitted by least squares, of which older ones count less and less.
 */
export class BatchTimeModel {
  private batches = 0;
  private weight = 0;
  private rows = 0;
  private time = 0;
  private rowsSquared = 0;
  private rowsTimesTime = 0;

  learn(rows: number, milliseconds: number): void {
    this.batches++;
    this.weight = this.weight * MEMORY + 1;
    this.rows = this.rows * MEMORY + rows;
    this.time = this.time * MEMORY + milliseconds;
    this.rowsSquared = this.rowsSquared * MEMORY + rows * rows;
    this.rowsTimesTime = this.rowsTimesTime * MEMORY + rows * milliseconds;
  }

  /**
   * Milliseconds that a batch of so many rows will take, once enough of them have run to rely on
   * it.
   */
  predict(rows: number): number | undefined {
    return this.batches < BATCHES_TO_BELIEVE ? undefined : this.estimate(rows);
  }

  /** As {@link predict}, from the first batch on. */
  estimate(rows: number): number | undefined {
    if (this.batches === 0) {
      return undefined;
    }
    const { weight } = this;
    const meanRows = this.rows / weight;
    const meanTime = this.time / weight;
    const variance = this.rowsSquared / weight - meanRows * meanRows;
    if (variance < 1e-6 * meanRows * meanRows) {
      // All of one size: smaller ones take no longer, and larger ones no longer per row.
      return meanTime * Math.max(1, rows / meanRows);
    }
    const slope = Math.max(0, (this.rowsTimesTime / weight - meanRows * meanTime) / variance);
    const start = meanTime - slope * meanRows;
    // No batch takes less than nothing: where the line would have it so, the best one through the
    // origin.
    return start < 0 ? (this.rowsTimesTime / this.rowsSquared) * rows : start + slope * rows;
  }
}
