import { Heap } from 'heap-js';
import { type Budget, Fill, type Load, loadOf, UNLIMITED } from './fill.js';
import { type Linked, LinkedList, type Part, type QueuedRequest } from './queued-request.js';
import {
  type ClassPlace,
  type ClassRange,
  CostClasses,
  costClassOf,
  SimilarRows,
} from './similar-rows.js';

export interface QueueOrder {
  /** Milliseconds of waiting that outweigh one level of priority. */
  readonly ageing: number;
  readonly weights: ReadonlyMap<string, number>;
}

/** The lowest is next: each level of priority is a head start. */
export function turnOf({ ageing }: QueueOrder, since: number, priority: number): number {
  return since - priority * ageing;
}

/**
 * A batch takes all these rows, or the first of them if each costs 1 and they needn't run together.
 */
interface Piece<R extends QueuedRequest> extends Load, Linked<Piece<R>> {
  readonly request: R;
  readonly tenant: Tenant<R>;
  offset: number;
  count: number;
  sum: number;
  readonly arrival: number;
  place: ClassPlace<Piece<R>> | undefined;
  /** False once a batch took it or its caller left. */
  isQueued: boolean;
  readonly older: Piece<R> | undefined;
}

interface Tenant<R extends QueuedRequest> {
  readonly name: string;
  readonly weight: number;
  readonly level: Level<R>;
  /** Cost of taken rows, divided by weight. The lowest is next. */
  pass: number;
  /** Breaks ties. */
  readonly turn: number;
  readonly pieces: LinkedList<Piece<R>>;
  readonly similar: SimilarRows<Piece<R>> | undefined;
}

type IsLive<R extends QueuedRequest> = (piece: Piece<R>) => boolean;

/**
 * One lane's ready rows: by priority and age, then fairly by tenant, then in arrival order.
 *
 * `ageing` ms of waiting outweigh one level of priority, so no row starves. With a budget, rows
 * that don't fit stay in front of their tenant's rows, while other tenants and lower priorities
 * fill the batch. With `overtaking`, only a batch's first row is the next in this order; the others
 * have a similar cost (see {@link SimilarRows}).
 */
export class RowQueue<R extends QueuedRequest> {
  closedBy: 'cost' | undefined;
  private readonly levels: Level<R>[] = [];
  private rows = 0;
  private cost = 0;
  private arrivals = 0;
  /** No deadline is later. */
  private latest = -Infinity;
  /** Infinity if no row has a deadline. */
  private earliest = Infinity;
  private lateUntil = 0;
  private late: R[] = [];
  private readonly limit: Budget;

  constructor(
    private readonly order: QueueOrder,
    private readonly budget?: Budget,
  ) {
    this.limit = budget ?? UNLIMITED;
  }

  get size(): number {
    return this.rows;
  }

  /** A request's rows arrive in order. */
  add({ request, offset, count }: Part<R>): void {
    const tenant = this.levelOf(request.priority).tenantOf(request.tenant);
    if (this.budget && !request.whole) {
      for (let row = offset; row < offset + count; row++) {
        this.put(tenant, request, row, 1);
      }
      return;
    }
    const { last } = tenant.pieces;
    if (last?.request === request) {
      // The rows stay together: the request may have to run whole.
      this.remove(last);
      this.put(tenant, request, last.offset, last.count + count);
    } else {
      this.put(tenant, request, offset, count);
    }
  }

  reaches(priority: number, now: number): boolean {
    this.lateUntil = now;
    const reached = this.levels.some(
      (level) => level.priority >= priority && level.head(this.isLive),
    );
    this.expireLate();
    return reached;
  }

  /**
   * A request that must run whole and exceeds a batch (it arrived when batches were larger) is
   * taken alone. The batch should have run at `until`: rows due earlier fail if others are due
   * later, which they would make late, too.
   */
  take(size: number, now: number, until = now, most = Infinity): Part<R>[] {
    this.lateUntil = this.hasDeadlines && this.hasRowsAfter(until) ? until : now;
    const { limit } = this;
    const fill = new Fill(most < limit.most ? { ...limit, most } : limit, size);
    const taken: Piece<R>[] = [];
    let range: ClassRange | undefined;
    for (let level = this.next(); level && !fill.isFull; level = this.next()) {
      const piece = level.pick(fill, range, this.isLive);
      if (!piece) {
        level.isSpent = true;
        continue;
      }
      range ??= level.classes?.best(piece, size);
      const part = this.takeFrom(piece, fill.room);
      fill.add(part);
      level.charge(piece, part.sum);
      taken.push(part);
    }
    for (const level of this.levels) {
      level.endBatch();
    }
    const isCut = fill.isCut || fill.isFull || (limit.overtaking > 0 && this.rows > 0);
    this.closedBy = fill.rows < size && isCut ? 'cost' : undefined;
    const wanted = this.expireLate() ? taken.filter(({ request }) => !request.isOver) : taken;
    return partsOf(this.budget ? wanted.toSorted((a, b) => a.arrival - b.arrival) : wanted);
  }

  leave(request: R): void {
    for (let piece = newestOf(request); piece; piece = piece.older) {
      if (piece.isQueued) {
        this.remove(piece);
      }
    }
    request.ready = undefined;
  }

  expected(size: number, most = Infinity): [rows: number, cost: number | undefined] {
    if (this.rows === 0) {
      return [0, this.budget && 0];
    }
    const [first] = this.limit.overtaking > 0 ? this : [];
    const range = first?.tenant.level.classes!.best(first, size);
    const mean = range ? range.cost / range.rows : this.cost / this.rows;
    const fitting = range?.rows ?? Math.max(1, Math.ceil(this.limit.most / mean));
    const rows = Math.min(size, this.rows, fitting);
    return [rows, this.budget && Math.min(mean * rows, most)];
  }

  get hasDeadlines(): boolean {
    return this.earliest < Infinity;
  }

  get isFull(): boolean {
    return this.cost >= this.limit.most;
  }

  fitting(request: R, offset: number, count: number, batches: number): number {
    if (!this.budget) {
      return count;
    }
    let free = batches * this.budget.most - this.cost;
    for (let row = offset; row < offset + count; row++) {
      free -= loadOf(request, row, 1).sum;
      if (free < 0) {
        return row - offset;
      }
    }
    return count;
  }

  *[Symbol.iterator](): Generator<Piece<R>> {
    for (const level of this.levels) {
      yield* level;
    }
  }

  private put(tenant: Tenant<R>, request: R, offset: number, count: number): void {
    const { sum, largest } = loadOf(request, offset, count);
    const piece: Piece<R> = {
      request,
      offset,
      count,
      sum,
      largest,
      tenant,
      arrival: this.arrivals++,
      place: undefined,
      isQueued: true,
      older: newestOf(request),
      before: undefined,
      after: undefined,
    };
    request.ready = piece;
    this.latest = Math.max(this.latest, request.deadline);
    this.earliest = Math.min(this.earliest, request.deadline);
    tenant.pieces.push(piece);
    tenant.similar?.add(piece, costClassOf(largest, this.limit.most));
    this.count(piece, count, sum);
  }

  private remove(piece: Piece<R>): void {
    const { tenant, count, sum } = piece;
    piece.isQueued = false;
    tenant.pieces.remove(piece);
    tenant.similar?.remove(piece);
    this.count(piece, -count, -sum);
  }

  private count({ tenant, place }: Piece<R>, rows: number, cost: number): void {
    tenant.level.classes?.add(place!.costClass, rows);
    this.rows += rows;
    this.cost += cost;
    if (this.rows === 0) {
      this.cost = 0;
      this.earliest = Infinity;
    }
  }

  private takeFrom(piece: Piece<R>, room: number): Piece<R> {
    if (!isDivisible(piece) || piece.count <= room) {
      this.remove(piece);
      return piece;
    }
    const first = { ...piece, count: room, sum: room };
    piece.offset += room;
    piece.count -= room;
    piece.sum -= room;
    this.count(piece, -room, -room);
    return first;
  }

  private levelOf(priority: number): Level<R> {
    for (const level of this.levels) {
      if (level.priority === priority) {
        return level;
      }
    }
    const level = new Level<R>(priority, this.order.weights, this.limit);
    this.levels.push(level);
    return level;
  }

  /** Applies the head start of each level of priority. */
  private next(): Level<R> | undefined {
    const [only] = this.levels;
    if (this.levels.length === 1) {
      return only!.isSpent ? undefined : only;
    }
    let next: Level<R> | undefined;
    let first = Infinity;
    for (const level of this.levels) {
      const head = level.isSpent ? undefined : level.head(this.isLive);
      const turn = head && turnOf(this.order, head.request.arrivedAt, level.priority);
      if (turn !== undefined && turn < first) {
        first = turn;
        next = level;
      }
    }
    return next;
  }

  private hasRowsAfter(time: number): boolean {
    if (this.latest <= time) {
      return false;
    }
    let latest = -Infinity;
    for (const { request } of this) {
      if (request.deadline > time) {
        return true;
      }
      latest = Math.max(latest, request.deadline);
    }
    this.latest = latest;
    return false;
  }

  /** Late requests fail only when we are done, since their callers may call back. */
  private readonly isLive: IsLive<R> = (piece) => {
    const { request } = piece;
    if (request.deadline > this.lateUntil) {
      return true;
    }
    this.remove(piece);
    this.late.push(request);
    return false;
  };

  private expireLate(): boolean {
    const { late } = this;
    if (late.length === 0) {
      return false;
    }
    this.late = [];
    late.forEach((request) => request.isOver || request.expire());
    return true;
  }
}

/** Tenants that a batch may try in vain. */
const MOST_PASSED_OVER = 64;
/** Beyond this many tenants, we forget those without rows. */
const TENANTS_REMEMBERED = 64;

/**
 * Rows of one priority, shared between tenants by weight and cost.
 *
 * Start-time fair queueing (Goyal, Vin and Cheng, 1996): a tenant joins at the others' current
 * `pass`, so it gains nothing from time without rows. Operations take constant time per row, and
 * logarithmic time in the number of tenants.
 */
class Level<R extends QueuedRequest> {
  isSpent = false;
  readonly classes: CostClasses | undefined;
  private tenants = new Map<string, Tenant<R>>();
  private readonly order = new Heap<Tenant<R>>((a, b) => a.pass - b.pass || a.turn - b.turn);
  private remembered = TENANTS_REMEMBERED;
  private passedOver: Tenant<R>[] = [];
  private readonly asked = new Set<Tenant<R>>();
  private pass = 0;
  private turn = 0;

  constructor(
    readonly priority: number,
    private readonly weights: ReadonlyMap<string, number>,
    private readonly budget: Budget,
  ) {
    this.classes = budget.overtaking > 0 ? new CostClasses(budget.most) : undefined;
  }

  tenantOf(name: string): Tenant<R> {
    // Most levels have one tenant.
    const next = this.order.peek();
    return next?.name === name ? next : (this.tenants.get(name) ?? this.join(name));
  }

  head(isLive: IsLive<R>): Piece<R> | undefined {
    return this.next(isLive)?.pieces.first;
  }

  /** The next piece with rows that fit; one chosen for its cost is of a class in the range. */
  pick(fill: Fill, range: ClassRange | undefined, isLive: IsLive<R>): Piece<R> | undefined {
    for (let tenant = this.next(isLive); tenant; tenant = this.next(isLive)) {
      const { similar } = tenant;
      const head = tenant.pieces.first!;
      if (similar) {
        this.asked.add(tenant);
      }
      if (fill.rows > 0 && similar?.mayPass(head)) {
        const piece = similar.pick(fill, range!, isLive);
        if (piece) {
          return piece;
        }
      } else if (isDivisible(head) || fill.fits(head)) {
        return head;
      }
      this.order.pop();
      this.passedOver.push(tenant);
      if (this.passedOver.length >= MOST_PASSED_OVER) {
        return undefined;
      }
    }
    return undefined;
  }

  charge(piece: Piece<R>, cost: number): void {
    const { tenant } = piece;
    tenant.similar?.took(piece);
    this.pass = tenant.pass;
    tenant.pass += cost / tenant.weight;
    if (this.order.length > 1) {
      this.order.pop();
      this.order.add(tenant);
    }
  }

  endBatch(): void {
    this.isSpent = false;
    this.order.push(...this.passedOver);
    this.passedOver = [];
    for (const { similar, pieces } of this.asked) {
      similar!.endBatch(pieces.first);
    }
    this.asked.clear();
  }

  *[Symbol.iterator](): Generator<Piece<R>> {
    for (const { pieces } of this.tenants.values()) {
      yield* pieces;
    }
  }

  private join(name: string): Tenant<R> {
    if (this.tenants.size === this.remembered) {
      const live = [...this.tenants.values()].filter(({ pieces }) => pieces.first);
      this.tenants = new Map(live.map((tenant) => [tenant.name, tenant]));
      this.order.init(live);
      this.remembered = Math.max(TENANTS_REMEMBERED, live.length * 2);
    }
    const { weights, budget } = this;
    const tenant = {
      name,
      weight: weights.get(name) ?? 1,
      level: this,
      pass: this.pass,
      turn: this.turn++,
      pieces: new LinkedList<Piece<R>>(),
      similar: budget.overtaking > 0 ? new SimilarRows<Piece<R>>(budget.overtaking) : undefined,
    };
    this.tenants.set(name, tenant);
    this.order.add(tenant);
    return tenant;
  }

  /** Removes tenants without rows, except the last one. */
  private next(isLive: IsLive<R>): Tenant<R> | undefined {
    for (let tenant = this.order.peek(); tenant; tenant = this.order.peek()) {
      const { pieces } = tenant;
      while (pieces.first && !isLive(pieces.first)) {
        // `isLive` has removed it.
      }
      if (pieces.first) {
        return tenant;
      }
      // Tenants that join later, this one included, start from here.
      this.pass = tenant.pass;
      if (this.tenants.size === 1) {
        return undefined;
      }
      this.order.pop();
      this.tenants.delete(tenant.name);
    }
    return undefined;
  }
}

/** Without a budget each row costs 1, so a batch may take a part. */
function isDivisible<R extends QueuedRequest>({ count, request }: Piece<R>): boolean {
  return count > 1 && !request.whole;
}

function newestOf<R extends QueuedRequest>({ ready }: R): Piece<R> | undefined {
  return ready as Piece<R> | undefined;
}

function partsOf<R extends QueuedRequest>(pieces: readonly Piece<R>[]): Part<R>[] {
  const parts: Part<R>[] = [];
  for (const { request, offset, count } of pieces) {
    const last = parts.at(-1);
    if (last?.request === request && last.offset + last.count === offset) {
      parts[parts.length - 1] = { ...last, count: last.count + count };
    } else {
      parts.push({ request, offset, count });
    }
  }
  return parts;
}
