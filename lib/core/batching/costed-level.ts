import { Heap } from 'heap-js';
import type { Budget, Fill } from './budget.js';
import { CostClasses } from './cost-classes.js';
import type { QueuedRequest } from './queued-request.js';
import { type CostedRow, type IsLive, TenantRows } from './tenant-rows.js';

/** The number of tenants that a batch may ask in vain for a row that fits. */
const MOST_PASSED_OVER = 64;

/**
 * Rows of one priority in a lane with a budget, shared between tenants by weight and cost: start-time
 * fair queueing, as in `FairQueue`, in which a row counts as much as it costs.
 */
export class CostedLevel<R extends QueuedRequest> {
  private readonly tenants = new Map<string, TenantRows<R>>();
  private readonly order = new Heap<TenantRows<R>>((a, b) => a.pass - b.pass || a.turn - b.turn);
  /** The tenants without a row that fits into the batch that is being formed. */
  private passedOver: TenantRows<R>[] = [];
  /** The tenants with rows in that batch. */
  private readonly served = new Set<TenantRows<R>>();
  private readonly classes: CostClasses;
  private pass = 0;
  private turn = 0;

  constructor(
    readonly priority: number,
    private readonly weights: ReadonlyMap<string, number>,
    private readonly budget: Budget,
  ) {
    this.classes = new CostClasses(budget.most);
  }

  add(row: CostedRow<R>): void {
    const { tenant } = row.request;
    let rows = this.tenants.get(tenant);
    if (!rows) {
      const weight = this.weights.get(tenant) ?? 1;
      rows = new TenantRows(tenant, weight, this.pass, this.turn++, this.budget.overtaking);
      this.tenants.set(tenant, rows);
      this.order.add(rows);
    }
    rows.add(row);
    this.classes.add(row.costClass, row.count, row.sum);
  }

  /** Notes that the row is gone. */
  remove({ costClass, count, sum }: CostedRow<R>): void {
    this.classes.add(costClass, -count, -sum);
  }

  /** The next row. */
  head(isLive: IsLive<R>): CostedRow<R> | undefined {
    return this.next(isLive)?.head(isLive);
  }

  /** The highest class of a batch whose first row is this one, and which has at most `size` rows. */
  topOf({ costClass, largest }: CostedRow<R>, size: number): number {
    return this.budget.overtaking > 0
      ? this.classes.best(costClass, largest, this.budget, size)
      : 0;
  }

  /** The next row that fits, of the class `top` or lower, and charges its tenant. */
  pick(fill: Fill, top: number, isLive: IsLive<R>): CostedRow<R> | undefined {
    for (let rows = this.next(isLive); rows; rows = this.next(isLive)) {
      const row = rows.pick(fill, top, isLive);
      this.order.remove(rows);
      if (row) {
        this.pass = rows.pass;
        rows.pass += row.sum / rows.weight;
        rows.turn = this.turn++;
        this.order.add(rows);
        this.served.add(rows);
        return row;
      }
      this.passedOver.push(rows);
      if (this.passedOver.length >= MOST_PASSED_OVER) {
        return undefined;
      }
    }
    return undefined;
  }

  /** Notes that the row was taken. */
  took(row: CostedRow<R>): void {
    this.tenants.get(row.request.tenant)!.took(row);
  }

  endBatch(): void {
    for (const rows of this.passedOver) {
      this.order.add(rows);
      rows.endBatch();
    }
    this.passedOver = [];
    this.served.forEach((rows) => rows.endBatch());
    this.served.clear();
  }

  sweep(): void {
    this.tenants.forEach((rows) => rows.sweep());
  }

  some(isOne: (row: CostedRow<R>) => boolean): boolean {
    for (const rows of this.tenants.values()) {
      if (rows.some(isOne)) {
        return true;
      }
    }
    return false;
  }

  *[Symbol.iterator](): Generator<CostedRow<R>> {
    for (const rows of this.tenants.values()) {
      yield* rows;
    }
  }

  /** The tenant whose turn it is. Tenants without rows are removed, except the last one. */
  private next(isLive: IsLive<R>): TenantRows<R> | undefined {
    for (let rows = this.order.peek(); rows; rows = this.order.peek()) {
      if (rows.head(isLive)) {
        return rows;
      }
      this.pass = rows.pass;
      if (this.tenants.size === 1) {
        return undefined;
      }
      this.order.remove(rows);
      this.tenants.delete(rows.tenant);
    }
    return undefined;
  }
}
