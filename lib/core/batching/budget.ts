import type { QueuedRequest } from './queued-request.js';

export interface Budget {
  /** A batch's largest cost. */
  readonly most: number;
  /** A batch costs its rows times their largest cost, not their sum. */
  readonly padded: boolean;
  /** Batches that may pass a row in favour of rows of similar cost. */
  readonly overtaking: number;
}

/** The budget of rows that cost 1 each. */
export const UNLIMITED: Budget = { most: Infinity, padded: false, overtaking: 0 };

/** Rows, with the sum and maximum of their costs. */
export interface Load {
  readonly count: number;
  readonly sum: number;
  readonly largest: number;
}

export function loadOf(
  { rowCosts }: Pick<QueuedRequest, 'rowCosts'>,
  offset: number,
  count: number,
): Load {
  if (!rowCosts) {
    return { count, sum: count, largest: 1 };
  }
  let [sum, largest] = [0, 0];
  for (let row = offset; row < offset + count; row++) {
    const cost = rowCosts[row]!;
    sum += cost;
    largest = Math.max(largest, cost);
  }
  return { count, sum, largest };
}

export interface BatchCost {
  readonly sum: number;
  /** What counts against the budget: with `padded`, its rows times their largest cost. */
  readonly padded: number;
  readonly most: number;
}

export function costOf(
  parts: readonly {
    readonly request: Pick<QueuedRequest, 'rowCosts'>;
    readonly offset: number;
    readonly count: number;
  }[],
  budget: Budget,
): BatchCost | undefined {
  if (budget.most === Infinity) {
    return undefined;
  }
  let [rows, sum, largest] = [0, 0, 0];
  for (const { request, offset, count } of parts) {
    const load = loadOf(request, offset, count);
    rows += count;
    sum += load.sum;
    largest = Math.max(largest, load.largest);
  }
  return { sum, padded: budget.padded ? rows * largest : sum, most: budget.most };
}

/** A filling batch's or window's rows and cost. */
export class Fill {
  rows = 0;
  /** True if rows didn't fit for their cost. */
  isCut = false;
  private sum = 0;
  private largest = 0;

  constructor(
    private readonly budget: Budget,
    private readonly size: number,
  ) {}

  /** Anything fits into an empty batch. */
  fits({ count, sum, largest }: Load): boolean {
    const { rows, budget } = this;
    if (rows === 0) {
      return true;
    }
    const cost = budget.padded ? (rows + count) * Math.max(this.largest, largest) : this.sum + sum;
    const isWithin = cost <= budget.most;
    this.isCut ||= !isWithin;
    return isWithin && rows + count <= this.size;
  }

  add({ count, sum, largest }: Load): void {
    this.rows += count;
    this.sum += sum;
    this.largest = Math.max(this.largest, largest);
  }

  /** The largest cost stays, since the others' is unknown. */
  remove({ count, sum }: Load): void {
    this.rows -= count;
    this.sum -= sum;
    if (this.rows === 0) {
      this.sum = 0;
      this.largest = 0;
    }
  }

  get room(): number {
    return this.size - this.rows;
  }

  /** True if no row of any cost fits. */
  get isFull(): boolean {
    return this.rows >= this.size || this.isSpent;
  }

  /** True if the budget leaves no room for a row of any cost. */
  get isSpent(): boolean {
    const { rows, sum, largest, budget } = this;
    return sum >= budget.most || (budget.padded && (rows + 1) * largest > budget.most);
  }

  /** How many of these rows fit, one after the other. */
  fitting(request: QueuedRequest, offset: number, count: number): number {
    if (this.budget === UNLIMITED) {
      return Math.min(count, this.room);
    }
    const trial = new Fill(this.budget, this.size);
    trial.add({ count: this.rows, sum: this.sum, largest: this.largest });
    let row = offset;
    for (; row < offset + count; row++) {
      const load = loadOf(request, row, 1);
      if (!trial.fits(load)) {
        break;
      }
      trial.add(load);
    }
    return row - offset;
  }
}
