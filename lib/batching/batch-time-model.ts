/** Factor by which the weight of earlier batches decreases with each new batch. */
const MEMORY = 0.95;

/** Batches to learn from before calls are refused by what was learned. */
export const BATCHES_TO_BELIEVE = 8;

/**
 * Expected run time of a batch by its size: a line `ms = a + b * rows`, fitted by least squares to
 * the batches that have run, with exponentially decreasing weights.
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
   * Expected milliseconds of a batch of this many rows, or undefined until enough batches have run.
   */
  predict(rows: number): number | undefined {
    return this.batches < BATCHES_TO_BELIEVE ? undefined : this.estimate(rows);
  }

  /** Like {@link predict}, from the first batch on. */
  estimate(rows: number): number | undefined {
    if (this.batches === 0) {
      return undefined;
    }
    const { weight } = this;
    const meanRows = this.rows / weight;
    const meanTime = this.time / weight;
    const variance = this.rowsSquared / weight - meanRows * meanRows;
    if (variance < 1e-6 * meanRows * meanRows) {
      // All batches had one size. Assume that smaller ones take as long, and larger ones as long
      // per row.
      return meanTime * Math.max(1, rows / meanRows);
    }
    const slope = Math.max(0, (this.rowsTimesTime / weight - meanRows * meanTime) / variance);
    const start = meanTime - slope * meanRows;
    // A negative time is impossible. Use the best line through the origin instead.
    return start < 0 ? (this.rowsTimesTime / this.rowsSquared) * rows : start + slope * rows;
  }
}
