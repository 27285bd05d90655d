import { Heap } from 'heap-js';
import type { Fill, Load } from './fill.js';
import { type Linked, LinkedList } from './queued-request.js';

/** Costs in one class differ by at most 9 %. */
const PER_DOUBLING = 8;
/** The last class also holds all lower costs. */
const COST_CLASSES = 128;

/**
 * Cost of starting a batch, as a share of the budget. A higher value accepts more padding. In
 * simulations of a text encoder on the CPU, values from 1/64 to 1/32 differ by 3 % in rows a
 * second; 1/24 has up to 6 % less.
 */
const START = 1 / 48;

/** Class 0 holds the highest costs, just below the budget. */
export function costClassOf(cost: number, most: number): number {
  return Math.min(COST_CLASSES - 1, Math.max(0, Math.floor(PER_DOUBLING * Math.log2(most / cost))));
}

function highestOf(costClass: number, most: number): number {
  return most * 2 ** (-costClass / PER_DOUBLING);
}

export class CostClasses {
  private readonly rows = new Float64Array(COST_CLASSES);

  constructor(private readonly most: number) {}

  add(costClass: number, rows: number): void {
    this.rows[costClass]! += rows;
  }

  /**
   * Classes that do the most work in the batch's time, padding and start included. (Anchored
   * batches: TEI's padded budget, with Multi-Bin Batching's bins, arXiv 2412.04504, around the row
   * that is next in order.)
   */
  best(first: ClassedRows, size: number): ClassRange {
    const anchor = first.place!.costClass;
    this.rows[anchor]! -= first.count;
    let best = this.rangeFrom(anchor, first, size);
    for (let top = anchor - 1; top >= 0; top--) {
      if (this.rows[top]! > 0) {
        const range = this.rangeFrom(top, first, size);
        best = range.score > best.score ? range : best;
      }
    }
    this.rows[anchor]! += first.count;
    return best;
  }

  /** Ends at the first row whose padding would cost more than a batch of its like. */
  private rangeFrom(top: number, { count, sum }: Load, size: number): ClassRange {
    const { most } = this;
    const width = highestOf(top, most);
    const room = Math.min(size, Math.floor(most / width));
    let [rows, work, bottom] = [count, sum, top];
    for (let each = top; each < COST_CLASSES && rows < room; each++) {
      const cost = highestOf(each, most);
      if (cost * (START * most + rows * width) < work * width) {
        break;
      }
      const taken = Math.min(this.rows[each]!, room - rows);
      rows += taken;
      work += taken * cost;
      bottom = each;
    }
    const cost = rows * width;
    return { top, bottom, rows, cost, score: work / (START * most + cost) };
  }
}

/** Highest costs first. */
export interface ClassRange {
  readonly top: number;
  readonly bottom: number;
  readonly rows: number;
  /** Includes padding. */
  readonly cost: number;
  /** Work in a unit of time. */
  readonly score: number;
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
 * Rows of similar cost may pass older ones, but at most `overtaking` batches may pass a row: rows
 * older than the `overtaking`-th latest passing batch's youngest arrival go first, in arrival
 * order.
 */
export class SimilarRows<Rows extends ClassedRows> {
  private readonly classes: (LinkedList<ClassPlace<Rows>> | undefined)[] = [];
  /** Youngest arrivals of the latest batches that passed rows. */
  private readonly passes = new Heap<number>();
  /** Youngest row's arrival in the batch being formed. */
  private youngest = -1;
  /** No class above has a row for the batch. */
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

  /** The oldest rows of the highest class that has some. */
  pick(fill: Fill, { top, bottom }: ClassRange, isLive: (rows: Rows) => boolean): Rows | undefined {
    for (this.from = Math.max(this.from, top); this.from <= bottom; this.from++) {
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
