export interface SecondFigures {
  readonly answered: number;
  /** Includes refused calls. */
  readonly failed: number;
  readonly rows: number;
  readonly batches: number;
  readonly padding: number;
  /** At the end of the second. */
  readonly queued: number;
  /** Rows as a share of the capacity; NaN if no batches are observed. */
  readonly fill: number;
  /** Milliseconds; NaN likewise. */
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

/** Null if nothing was recorded. */
export type Columns = Readonly<Record<keyof SecondFigures, readonly (number | null)[]>>;

/** The last seconds, in memory of fixed size. */
export class History {
  private readonly columns: Readonly<Record<keyof SecondFigures, Float32Array>>;
  /** One after the last second. */
  private end: number;

  constructor(
    private readonly seconds: number,
    private readonly begin: number,
  ) {
    this.columns = byName(() => new Float32Array(seconds).fill(NaN));
    this.end = begin;
  }

  add(figures: SecondFigures): void {
    const place = this.end++ % this.seconds;
    NAMES.forEach((name) => (this.columns[name][place] = figures[name]));
  }

  firstAfter(second: number): number {
    return Math.max(second + 1, this.begin, this.end - this.seconds);
  }

  /** All kept seconds after this one. */
  since(second: number): Columns {
    const first = this.firstAfter(second);
    const length = Math.max(0, this.end - first);
    return byName((name) =>
      Array.from({ length }, (_, i) => numberOf(this.columns[name][(first + i) % this.seconds])),
    );
  }

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

/** JSON has no NaN; three decimals are enough for a chart. */
function numberOf(value: number | undefined): number | null {
  return value === undefined || Number.isNaN(value) ? null : Math.round(value * 1000) / 1000;
}
