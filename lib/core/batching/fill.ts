import type { QueuedRequest } from './queued-request.js';

export interface Budget {
  readonly most: number;
  /** A batch costs its rows times their largest cost, not their sum. */
  readonly padded: boolean;
  /** Batches that may pass a row for rows of similar cost. */
  readonly overtaking: number;
}

export const UNLIMITED: Budget = { most: Infinity, padded: false, overtaking: 0 };

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
  /** Rows times their largest cost if the budget is padded. */
  readonly padded: number;
  readonly most: number;
}

type Rows = Pick<QueuedRequest, 'rowCosts'>;

interface Part {
  readonly request: Rows;
  readonly offset: number;
  readonly count: number;
}

export function costOf(parts: readonly Part[], budget: Budget): BatchCost | undefined {
  return budget.most === Infinity ? undefined : new Fill(budget).with(parts).batchCost;
}

export class Fill {
  rows = 0;
  isCut = false;
  private sum = 0;
  private largest = 0;

  constructor(
    private readonly budget: Budget,
    private readonly size = Infinity,
  ) {}

  with(parts: readonly Part[]): this {
    parts.forEach(({ request, offset, count }) => this.add(loadOf(request, offset, count)));
    return this;
  }

  /** Anything fits into an empty batch. */
  fits(load: Load): boolean {
    if (this.rows === 0) {
      return true;
    }
    const isWithin = this.costWith(load) <= this.budget.most;
    this.isCut ||= !isWithin;
    return isWithin && this.rows + load.count <= this.size;
  }

  add({ count, sum, largest }: Load): void {
    this.rows += count;
    this.sum += sum;
    this.largest = Math.max(this.largest, largest);
  }

  /** Keeps the largest cost, since the others' is unknown. */
  remove(count: number, sum = (this.sum * count) / this.rows): void {
    this.rows -= count;
    this.sum -= sum;
    if (this.rows === 0) {
      this.sum = 0;
      this.largest = 0;
    }
  }

  get cost(): number {
    return this.budget.padded ? this.rows * this.largest : this.sum;
  }

  costWith({ count, sum, largest }: Load): number {
    return this.budget.padded
      ? (this.rows + count) * Math.max(this.largest, largest)
      : this.sum + sum;
  }

  get batchCost(): BatchCost {
    return { sum: this.sum, padded: this.cost, most: this.budget.most };
  }

  get room(): number {
    return this.size - this.rows;
  }

  get isFull(): boolean {
    return this.rows >= this.size || this.isSpent;
  }

  /** True if no row of any cost fits into the budget. */
  get isSpent(): boolean {
    const { rows, sum, largest, budget } = this;
    return sum >= budget.most || (budget.padded && (rows + 1) * largest > budget.most);
  }

  fitting(request: Rows, offset: number, count: number, most = Infinity): number {
    const { rows, budget } = this;
    const free = Math.min(count, this.room);
    if (budget === UNLIMITED) {
      return Math.max(0, Math.min(free, Math.floor(most) - rows));
    }
    const limit = Math.min(most, budget.most);
    let { sum, largest } = this;
    for (let fitting = 0; fitting < free; fitting++) {
      const row = loadOf(request, offset + fitting, 1);
      const all = rows + fitting + 1;
      sum += row.sum;
      largest = Math.max(largest, row.largest);
      if (all > 1 && (budget.padded ? all * largest : sum) > limit) {
        return fitting;
      }
    }
    return free;
  }
}
