import type { Budget } from './budget.js';

/** Classes for each doubling of the cost: the costs of a class differ by 9 % at most. */
const PER_DOUBLING = 8;
/** The last class also holds rows that cost less. */
export const COST_CLASSES = 128;

/**
 * The cost of starting a batch, as a share of the budget. The higher it is, the more padding is
 * accepted to fill a batch. In simulations of a text encoder on the CPU, 1/8 has up to 5 % less rows
 * a second.
 */
const START = 1 / 32;

/** The class of a cost. Class 0 holds the highest costs, just below the budget. */
export function costClassOf(cost: number, most: number): number {
  return Math.min(COST_CLASSES - 1, Math.max(0, Math.floor(PER_DOUBLING * Math.log2(most / cost))));
}

/** The highest cost of a class. */
function highestOf(costClass: number, most: number): number {
  return most * 2 ** (-costClass / PER_DOUBLING);
}

/** The numbers and costs of waiting rows by class of cost. */
export class CostClasses {
  private readonly rows = new Float64Array(COST_CLASSES);
  private readonly costs = new Float64Array(COST_CLASSES);

  constructor(private readonly most: number) {}

  add(costClass: number, rows: number, cost: number): void {
    this.rows[costClass]! += rows;
    this.costs[costClass]! += cost;
  }

  /**
   * The highest class of a batch with a row of the class `anchor`: the one whose batch does the most
   * work in its time, padding and start included. Such a batch has the rows of that class and, while
   * there is room, of the next lower ones. (Anchored batches: TEI's padded budget, with the row of
   * Multi-Bin Batching's bins that the order gives next, arXiv 2412.04504.)
   */
  best(anchor: number, cost: number, { most }: Budget, size: number): number {
    let [best, highest] = [anchor, 0];
    for (let top = anchor; top >= 0; top--) {
      const score = this.rows[top]! > 0 || top === anchor ? this.score(top, cost, most, size) : 0;
      if (score > highest) {
        [best, highest] = [top, score];
      }
    }
    return best;
  }

  private score(top: number, anchor: number, most: number, size: number): number {
    const width = highestOf(top, this.most);
    const room = Math.min(size, Math.floor(most / width));
    // The anchor is in the batch; it is also counted in its class, which only rounds the score.
    let [rows, work] = [1, anchor];
    for (let costClass = top; costClass < COST_CLASSES && rows < room; costClass++) {
      const present = this.rows[costClass]!;
      const taken = Math.min(present, room - rows);
      rows += taken;
      work += present > 0 ? (this.costs[costClass]! * taken) / present : 0;
    }
    return work / (START * most + rows * width);
  }
}
