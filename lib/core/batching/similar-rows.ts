import { Heap } from 'heap-js';
import type { Budget, Fill, Load } from './budget.js';
import { type Linked, LinkedList } from './queued-request.js';

/** Classes for each doubling of the cost: the costs of a class differ by 9 % at most. */
const PER_DOUBLING = 8;
/** The last class also holds rows that cost less. */
const COST_CLASSES = 128;

/**
 * The cost of starting a batch, as a share of the budget. The higher it is, the more padding we
 * accept to fill a batch. In simulations of a text encoder on the CPU, 1/8 has up to 5 % less rows
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

/** Numbers and costs of waiting rows by cost class. */
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

/** Rows that may be chosen for their cost. */
interface ClassedRows extends Load {
  /** Grows with each arrival. */
  readonly arrival: number;
  /** Their place among the rows of their class. */
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
 * keep the arrival of each such batch's youngest row: rows older than the `overtaking`-th latest of
 * these go first, in arrival order.
 */
export class SimilarRows<Rows extends ClassedRows> {
  private readonly classes: (LinkedList<ClassPlace<Rows>> | undefined)[] = [];
  /** Arrivals of the youngest rows of batches that passed rows: the latest of them. */
  private readonly passes = new Heap<number>();
  /** Arrival of the youngest row in the batch that we form. */
  private youngest = -1;
  /** No class above this one has a row for the batch that we form. */
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

  /** True if a batch may pass these rows. */
  mayPass({ arrival }: Rows): boolean {
    return this.passes.length < this.overtaking || arrival >= this.passes.peek()!;
  }

  /** The oldest rows of the class `top`, or of the highest lower one, that fit. */
  pick(fill: Fill, top: number, isLive: (rows: Rows) => boolean): Rows | undefined {
    for (this.from = Math.max(this.from, top); this.from < COST_CLASSES; this.from++) {
      const rows = this.firstOf(this.from, isLive);
      if (rows && fill.fits(rows)) {
        return rows;
      }
    }
    return undefined;
  }

  /** Notes that the batch takes these rows. */
  took({ arrival }: Rows): void {
    this.youngest = Math.max(this.youngest, arrival);
  }

  /** Notes that the batch is formed: it has passed the older rows that are left. */
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
