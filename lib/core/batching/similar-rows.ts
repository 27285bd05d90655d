import { Heap } from 'heap-js';
import type { Budget, Fill, Load } from './budget.js';
import { type Linked, LinkedList } from './queued-request.js';

/** Per doubling of the cost: costs in one class differ by at most 9 %. */
const PER_DOUBLING = 8;
/** The last class also holds all lower costs. */
const COST_CLASSES = 128;

/**
 * The cost of starting a batch, as a share of the budget. A higher value accepts more padding to
 * fill a batch. In simulations of a text encoder on the CPU, 1/8 has up to 5 % less rows a second.
 */
const START = 1 / 32;

/** Class 0 holds the highest costs, just below the budget. */
export function costClassOf(cost: number, most: number): number {
  return Math.min(COST_CLASSES - 1, Math.max(0, Math.floor(PER_DOUBLING * Math.log2(most / cost))));
}

function highestOf(costClass: number, most: number): number {
  return most * 2 ** (-costClass / PER_DOUBLING);
}

export class CostClasses {
  private readonly rows = new Float64Array(COST_CLASSES);
  private readonly costs = new Float64Array(COST_CLASSES);

  constructor(private readonly most: number) {}

  add(costClass: number, rows: number, cost: number): void {
    this.rows[costClass]! += rows;
    this.costs[costClass]! += cost;
  }

  /**
   * The highest class for a batch whose first row has the class `anchor`: the one whose batch does
   * the most work in its time, padding and start included. Such a batch has that class's rows and,
   * while there is room, rows of the next lower ones. (Anchored batches: TEI's padded budget, with
   * Multi-Bin Batching's bins, arXiv 2412.04504, around the row that is next in order.)
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
    // The anchor is also counted in its class, which only rounds the score.
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

interface ClassedRows extends Load {
  readonly arrival: number;
  place: ClassPlace<this> | undefined;
}

export interface ClassPlace<Rows> extends Linked<ClassPlace<Rows>> {
  readonly rows: Rows;
  readonly costClass: number;
}

/**
 * One tenant's rows by cost class.
 *
 * Rows of similar cost may pass older ones, but at most `overtaking` batches may pass a row. We
 * keep each such batch's youngest arrival: rows older than the `overtaking`-th latest go first, in
 * arrival order.
 */
export class SimilarRows<Rows extends ClassedRows> {
  private readonly classes: (LinkedList<ClassPlace<Rows>> | undefined)[] = [];
  /** The latest arrivals of youngest rows in batches that passed rows. */
  private readonly passes = new Heap<number>();
  /** Arrival of the youngest row in the batch being formed. */
  private youngest = -1;
  /** No class above this one has a row for that batch. */
  private from = 0;

  constructor(private readonly overtaking: number) {}

  add(rows: Rows, costClass: number): void {
    const place = { rows, costClass, before: undefined, after: undefined };
    rows.place = place;
    (this.classes[costClass] ??= new LinkedList()).push(place);
  }

  remove({ place }: Rows): void {
    this.classes[place!.costClass]!.remove(place!);
  }

  mayPass({ arrival }: Rows): boolean {
    return this.passes.length < this.overtaking || arrival >= this.passes.peek()!;
  }

  /** The oldest rows that fit, of the class `top` or the highest lower one. */
  pick(fill: Fill, top: number, isLive: (rows: Rows) => boolean): Rows | undefined {
    for (this.from = Math.max(this.from, top); this.from < COST_CLASSES; this.from++) {
      const rows = this.firstOf(this.from, isLive);
      if (rows && fill.fits(rows)) {
        return rows;
      }
    }
    return undefined;
  }

  took({ arrival }: Rows): void {
    this.youngest = Math.max(this.youngest, arrival);
  }

  /** The batch has passed the older rows that are left. */
  endBatch(oldest: Rows | undefined): void {
    const { passes, overtaking } = this;
    if (oldest && this.youngest > oldest.arrival) {
      passes.push(this.youngest);
      while (passes.length > overtaking || passes.peek()! < oldest.arrival) {
        passes.pop();
      }
    }
    this.youngest = -1;
    this.from = 0;
  }

  private firstOf(costClass: number, isLive: (rows: Rows) => boolean): Rows | undefined {
    const rows = this.classes[costClass]?.first?.rows;
    return rows && !isLive(rows) ? this.firstOf(costClass, isLive) : rows;
  }
}
