/** What may not happen, in rows; but for calls that were lost, which are counted as calls. */
export interface Faults {
  /** Calls that have not been settled although nothing is left to do. */
  lost: number;
  /** Rows that were answered twice, or ran twice where they must not. */
  doubled: number;
  /** Rows whose answer is another's, or was never computed. */
  mixed: number;
  /** Calls that ended as they must not, and whatever else was not expected. */
  unexpected: number;
}

const MOST_DETAILS = 20;

/** Counts every row from the cradle to the grave. */
export class Ledger {
  readonly faults: Faults = { lost: 0, doubled: 0, mixed: 0, unexpected: 0 };
  /** The first of the faults, in words. */
  readonly details: string[] = [];
  /**
   * How calls ended, by serving and by `answered`, `left` or the code of the error: calls and rows.
   */
  readonly ends = new Map<string, Map<string, { calls: number; rows: number }>>();
  /**
   * The servings with a call under way that makes its batch throw, of those that find out which it
   * is.
   */
  readonly throwing = new Set<string>();
  /** Calls that wait for their answer. */
  open = 0;
  answered = 0;
  private issued = 0;
  private readonly runs: Uint8Array;
  private readonly answers: Uint8Array;

  constructor(rows: number) {
    this.runs = new Uint8Array(rows);
    this.answers = new Uint8Array(rows);
  }

  /** The rows that there were so far. */
  get rows(): number {
    return this.issued;
  }

  /** The first of so many new ids. */
  issue(rows: number): number {
    const first = this.issued;
    this.issued += rows;
    return first;
  }

  /** A batch function has got the row. */
  ran(id: number, isOnce: boolean): void {
    this.runs[id]!++;
    if (isOnce && this.runs[id]! > 1) {
      this.fault('doubled', `row ${id} ran again`);
    }
  }

  hasRun(id: number): boolean {
    return this.runs[id]! > 0;
  }

  /** A caller has got the answer to his row. */
  answer(id: number): void {
    this.answered++;
    this.answers[id]!++;
    if (this.answers[id]! > 1) {
      this.fault('doubled', `row ${id} was answered again`);
    }
  }

  end(serving: string, how: string, rows: number): void {
    const ends = this.ends.get(serving) ?? new Map<string, { calls: number; rows: number }>();
    const end = ends.get(how) ?? { calls: 0, rows: 0 };
    end.calls++;
    end.rows += rows;
    ends.set(how, end);
    this.ends.set(serving, ends);
  }

  fault(kind: keyof Faults, detail: string, count = 1): void {
    this.faults[kind] += count;
    if (this.details.length < MOST_DETAILS) {
      this.details.push(`${kind}: ${detail}`);
    }
  }
}
