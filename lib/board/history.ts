/** The figures of a serving in one second. */
export interface SecondFigures {
  /** Calls that were answered, and those that were refused or failed. */
  readonly answered: number;
  readonly failed: number;
  /** Rows and batches that have run, and rows that filled these up. */
  readonly rows: number;
  readonly batches: number;
  readonly padding: number;
  /** The queued rows at the end of the second. */
  readonly queued: number;
  /** The rows of its batches as a share of those that they had room for; NaN while none are observed. */
  readonly fill: number;
  /** Milliseconds that the oldest rows of batches waited, and that batches ran; NaN likewise. */
  readonly waitMedian: number;
  readonly waitP99: number;
  readonly runMedian: number;
  readonly runP99: number;
}

const NAMES = [
  'answered',
  'failed',
  'rows',
  'batches',
  'padding',
  'queued',
  'fill',
  'waitMedian',
  'waitP99',
  'runMedian',
  'runP99',
] as const satisfies readonly (keyof SecondFigures)[];

/** Columns of figures, with a number for each second, or null where nothing was recorded. */
export type Columns = Readonly<Record<keyof SecondFigures, readonly (number | null)[]>>;

/** The figures of a serving for the last seconds, in memory of fixed size. */
export class History {
  private readonly columns: Readonly<Record<keyof SecondFigures, Float32Array>>;
  /** The second after the last one that was written. */
  private end: number;

  constructor(
    private readonly seconds: number,
    /** The first second that it holds. */
    private readonly begin: number,
  ) {
    this.columns = byName(() => new Float32Array(seconds).fill(NaN));
    this.end = begin;
  }

  /** Adds the figures of the next second. */
  add(figures: SecondFigures): void {
    const place = this.end++ % this.seconds;
    NAMES.forEach((name) => (this.columns[name][place] = figures[name]));
  }

  /** The first second that {@link since} gives at the earliest. */
  firstAfter(second: number): number {
    return Math.max(second + 1, this.begin, this.end - this.seconds);
  }

  /** The figures of all seconds after this one, as far as they are kept. */
  since(second: number): Columns {
    const first = this.firstAfter(second);
    const length = Math.max(0, this.end - first);
    return byName((name) =>
      Array.from({ length }, (_, i) => numberOf(this.columns[name][(first + i) % this.seconds])),
    );
  }

  /** The mean of a figure over the last seconds. */
  mean(name: keyof SecondFigures, seconds: number): number {
    const values = this.since(Math.max(this.begin, this.end - seconds) - 1)[name].map(Number);
    return values.length === 0 ? 0 : values.reduce((sum, value) => sum + value, 0) / values.length;
  }
}

function byName<Value>(
  make: (name: keyof SecondFigures) => Value,
): Record<keyof SecondFigures, Value> {
  return Object.fromEntries(NAMES.map((name) => [name, make(name)])) as never;
}

/** JSON has no NaN, and three places are enough for a chart. */
function numberOf(value: number | undefined): number | null {
  return value === undefined || Number.isNaN(value) ? null : Math.round(value * 1000) / 1000;
}
