import { countOfRows } from '../format.js';
import {
  DeadlineExceededError,
  DeadlineTooShortError,
  OverloadedError,
  RequestTooLargeError,
  withoutStack,
} from '../errors.js';
import type { Budget } from './budget.js';
import { PlannedBatches, type PlannedBatch, type WorkAhead } from './planned-batches.js';
import type { Limits, QueuedRequest } from './queued-request.js';

export interface RoomOptions {
  readonly name: string;
  readonly maxRows: number;
  readonly maxCost?: number | undefined;
  /**
   * True if a call's cost doesn't divide by its rows.
   *
   * @default false
   */
  readonly costsAsWhole?: boolean | undefined;
}

export interface AdmissionOptions extends Pick<RoomOptions, 'name'> {
  /** True if lanes have a latency target. */
  readonly hasTargets?: boolean | undefined;
  readonly budget?: Budget | undefined;
}

export interface BusyUntil {
  /** Expected milliseconds until it is free. */
  time: number;
  /** Sum of its batches' squared expected milliseconds. */
  squares: number;
}

export interface PoolLoad {
  readonly partitions: number;
  readonly idle: number;
  busyUntil(now: number): BusyUntil[];
}

export interface LatencyTarget {
  /** Milliseconds until 99 of 100 calls are to be answered. */
  readonly latencyTarget: number;
  /** Rows of a full batch now. */
  readonly batchSize: number;
  /** The most that a batch may cost now, if the serving has `batchSize.cost`. */
  readonly cost?: number | undefined;
  /** Expected milliseconds of such a batch; undefined until enough batches have run. */
  readonly expected: number | undefined;
  /** 99 of 100 run times are at most this factor times the expected ones. */
  readonly overrun: number;
}

interface Place {
  readonly offset: number;
  readonly count: number;
  readonly due: number;
  readonly most: number;
  readonly isNew: boolean;
}

/** A batch's start, in milliseconds from now. */
interface Start {
  readonly time: number;
  /** Sum of squared run times before it. */
  readonly squares: number;
  readonly isImmediate: boolean;
}

/** We follow this many batches one by one; the order of later ones hardly matters. */
const BATCHES_FOLLOWED = 8;

/** Before any batch has run, Retry-After is 1 to this many seconds. */
const SECONDS_UNKNOWN = 3;

const NO_TARGET: { readonly latencyTarget?: number } = {};
const NO_BATCH = { rows: 0, sum: 0, largest: 0 };

interface QueuedAhead {
  readonly priority: number;
  rows: number;
  /** Rows of named tenants. */
  named: number;
  readonly tenants: Map<string, number>;
}

interface Lack {
  readonly why: string;
  /** Rows that must run to make room. */
  readonly excess: number;
}

/** What a call counts for in the queue: its rows, or a place for rows that it is preparing. */
export type Queued = Pick<QueuedRequest, 'size' | 'cost' | 'priority' | 'tenant'>;

/**
 * The ledger of the queue, shared by all of a serving's rows: the only count that its limits look
 * at, and never an estimate. Only rows that run again may exceed a limit, since they were admitted
 * before; new calls wait until they fit.
 *
 * Callers with few queued rows must find room, whatever others queue. So calls of a priority below
 * 0 leave half of the queue to others, and a tenant may have as many rows as there is room left
 * (dynamic thresholds: Choudhury and Hahne, 1998): one alone has half of it, two a third each.
 */
export class QueueRoom {
  rows = 0;
  private cost = 0;
  private readonly tenants = new Map<string, number>();

  constructor(private readonly options: RoomOptions) {}

  count(request: QueuedRequest, rows: number): void {
    const before = request.cost === 0 ? 0 : this.costOf(request);
    request.waiting += rows;
    this.countRows(request.tenant, rows);
    if (this.rows === 0) {
      this.cost = 0;
    } else if (request.cost !== 0) {
      this.cost += this.costOf(request) - before;
    }
  }

  countRows(tenant: string, rows: number): void {
    this.rows += rows;
    if (tenant !== '') {
      add(this.tenants, tenant, rows);
    }
  }

  lackFor({ size, cost, priority, tenant }: Queued): Lack | undefined {
    const { maxRows, maxCost = Infinity } = this.options;
    const queued = this.rows;
    const rows = queued + size;
    if (2 * rows <= maxRows && maxCost === Infinity) {
      return undefined;
    }
    const half = Math.floor(maxRows / 2);
    if (size > maxRows) {
      throw this.tooLarge(`${countOfRows(maxRows)} and never ${size}`, 'queue.maxRows');
    }
    if (cost > maxCost) {
      throw this.tooLarge(`a cost of ${maxCost} and never ${cost}`, 'queue.maxCost');
    }
    if (size > mostRowsOf({ priority, tenant }, maxRows)) {
      throw this.tooLarge(
        `${countOfRows(half)} of a tenant, or of a priority below 0, and never ${size}`,
        'queue.maxRows',
      );
    }
    if (rows > maxRows) {
      const why =
        `has ${queued} of at most ${maxRows} rows in its queue and no ` +
        `room for ${size} more; call again later, or raise queue.maxRows`;
      return { why, excess: rows - maxRows };
    }
    if (this.cost + cost > maxCost) {
      const why =
        `has rows in its queue that cost ${this.cost} of at most ${maxCost} and ` +
        `no room for ${cost} more; call again later, or raise queue.maxCost`;
      return { why, excess: (queued * (this.cost + cost - maxCost)) / this.cost };
    }
    if (priority < 0 && rows > half) {
      const why =
        `has ${countOfRows(queued)} in its queue, of which calls of priority ` +
        `${priority} leave half of ${maxRows} to others; call again later`;
      return { why, excess: rows - half };
    }
    const own = tenant === '' ? 0 : (this.tenants.get(tenant) ?? 0) + size;
    if (own > maxRows - rows) {
      const why =
        `would have ${own} rows of tenant "${tenant}" in its queue and ` +
        `room for ${maxRows - rows} of others, and a tenant may have no more than ` +
        'is left to others; call again later';
      // Each row that runs counts twice: the tenant has one fewer, and others get its room.
      return { why, excess: (own - (maxRows - rows)) / 2 };
    }
    return undefined;
  }

  /** Like {@link lackFor}, for a row whose cost isn't known yet and is above 0. */
  lackForPlace(place: Queued): Lack | undefined {
    const { maxCost = Infinity } = this.options;
    return this.lackFor({ ...place, cost: this.cost < maxCost ? 0 : maxCost });
  }

  /** A call that costs as a whole does so until its last row leaves: no part's cost is known. */
  private costOf({ cost, size, waiting }: QueuedRequest): number {
    if (this.options.costsAsWhole) {
      return waiting > 0 ? cost : 0;
    }
    return (cost * waiting) / size;
  }

  private tooLarge(what: string, option: string): Error {
    return new RequestTooLargeError(
      `Serving "${this.options.name}" has room in its queue for ${what}; give fewer at a time, ` +
        `or raise ${option}`,
    );
  }
}

/**
 * Admission control: immediately refuses a request that has no room, or would miss its deadline or
 * its lane's latency target.
 *
 * A timed call gets a place in a planned batch (see `PlannedBatches`). With `T(w)` as the expected
 * time of a batch with work w, and `r` as the spread of run times, the call is answered after the
 * running batch, the batches ahead and its own. Independent overruns add up to
 * `(r - 1) √(sum of T²)`.
 *
 * - A call joins the last planned batch if that still answers all its calls in time.
 * - Otherwise we plan a new batch, with the most work that the call can bear; a small one only
 *   while its size carries the load. Under overload we refuse calls until a batch of the size for a
 *   lasting load fits.
 * - An idle partition would run a batch anyway, so only its additional time needs a margin.
 *
 * Sources: Clipper (NSDI 2017) and BentoML's dispatcher choose the size by the target, Nexus (SOSP
 * 2019) makes room for two runs in it, and Clockwork (OSDI 2020) refuses what would be late.
 */
export class Admission {
  /** Rows in its queue. */
  queued = 0;
  private readonly priorities = new Map<number, QueuedAhead>();
  private readonly planned = new Map<Limits, PlannedBatches>();
  /** Cached: most calls ask for the same. */
  private lastWaiting: QueuedAhead | undefined;
  private lastPlanned: PlannedBatches | undefined;

  constructor(
    private readonly options: AdmissionOptions,
    private readonly room: QueueRoom,
  ) {}

  /**
   * @throws RequestTooLargeError if the rows don't fit into an empty queue
   * @throws OverloadedError if there is no room, or it would miss its lane's target
   * @throws DeadlineExceededError if its deadline has passed
   * @throws DeadlineTooShortError if we couldn't answer it in time
   */
  enter(request: QueuedRequest, now: number, work: PoolLoad): void {
    const { deadline, lane, size } = request;
    const within = this.withinOf(request, now);
    const planned = this.plannedOf(lane.limits);
    if (within < Infinity) {
      planned.arrived(request, now, Math.max(within, 1));
    }
    const lack = this.room.lackFor(request);
    if (lack) {
      throw this.overloaded(lack, lane.limits, work);
    }
    if (deadline <= now) {
      throw this.tooLate(deadline, now);
    }
    const places = within < Infinity ? this.placesFor(request, within, now, work) : undefined;
    this.countRows(request, size);
    if (!places) {
      planned.add(request, size, lane.isAlone);
    }
    for (const { isNew, due, most, offset, count } of places ?? []) {
      if (isNew) {
        planned.begin(due, most);
      } else {
        planned.open!.most = Math.max(most, planned.open!.most);
        planned.open!.due = Math.min(due, planned.open!.due);
      }
      planned.extend(request, offset, count);
    }
  }

  count(request: QueuedRequest, rows: number): void {
    this.countRows(request, rows);
    this.plannedOf(request.lane.limits).add(request, rows, true);
  }

  leave(request: QueuedRequest, rows: number): void {
    this.countRows(request, -rows);
    this.plannedOf(request.lane.limits).remove(rows);
  }

  /** `work` is the batch's rows with padding, or their cost. */
  learn(limits: Limits, work: number, milliseconds: number): void {
    this.plannedOf(limits).times.learn(work, milliseconds);
  }

  /** Expected milliseconds; undefined while we know too little. */
  timeOf(limits: Limits, rows: number, work?: number): number | undefined {
    const planned = this.plannedOf(limits);
    return planned.times.expected(work ?? planned.workOfRows(rows));
  }

  /** Least milliseconds; 0 while we know too little. An untried size may be fast. */
  leastTimeOf(limits: Limits, rows: number, work?: number): number {
    const planned = this.plannedOf(limits);
    const { times } = planned;
    return times.isBelieved ? times.hoped(work ?? planned.workOfRows(rows)) : 0;
  }

  /** Milliseconds that one batch saves, if we know them for sure. */
  gainOf(limits: Limits, first: number, others: number, cost?: number): number {
    const planned = this.plannedOf(limits);
    const { times } = planned;
    const workOf = (rows: number): number => (cost ? rows * cost : planned.workOfRows(rows));
    return times.isBelieved
      ? times.least(workOf(first)) +
          times.least(workOf(others)) -
          times.hoped(workOf(first + others))
      : 0;
  }

  targetOf(limits: Limits): LatencyTarget | undefined {
    const latencyTarget = this.options.hasTargets ? limits.latencyTarget : undefined;
    if (latencyTarget === undefined) {
      return undefined;
    }
    const planned = this.plannedOf(limits);
    const { times } = planned;
    const work = planned.lastingWork(latencyTarget, 1);
    return {
      latencyTarget,
      batchSize: planned.budget ? limits.batchSize : Math.max(1, work),
      cost: planned.budget && work,
      expected: times.expected(planned.budget ? work : Math.max(1, work)),
      overrun: times.overrun,
    };
  }

  sizeOf(limits: Limits, opened = limits.batchSize): number {
    const { mostOfNext, budget } = this.plannedOf(limits);
    const most = this.options.hasTargets ? Math.min(opened, limits.batchSize) : opened;
    return budget ? most : Math.max(1, Math.min(most, mostOfNext));
  }

  mostCostOf(limits: Limits): number {
    return Math.max(Number.MIN_VALUE, this.plannedOf(limits).mostOfNext);
  }

  /** @throws OverloadedError unless there is a place for a row of unknown cost */
  checkPlace(place: Queued, work: PoolLoad): void {
    const lack = this.room.lackForPlace(place);
    if (lack) {
      throw this.overloaded(lack, undefined, work);
    }
  }

  private overloaded({ why, excess }: Lack, limits: Limits | undefined, work: PoolLoad): Error {
    const retryAfter = this.secondsFor(excess, limits, work);
    return withoutStack(
      () => new OverloadedError(`Serving "${this.options.name}" ${why}`, { retryAfter }),
    );
  }

  private tooLate(deadline: number, now: number): Error {
    const message =
      `The deadline of the call to serving "${this.options.name}" had passed ` +
      `${Math.ceil(now - deadline)} ms before it came; give it more time`;
    return withoutStack(() => new DeadlineExceededError(message));
  }

  private withinOf({ deadline, lane }: QueuedRequest, now: number): number {
    const { latencyTarget = Infinity } = this.options.hasTargets ? lane.limits : NO_TARGET;
    return Math.min(deadline - now, latencyTarget);
  }

  /**
   * Places in planned batches that answer the rows in time; undefined while we know too little. A
   * call that finds an idle partition and an empty queue is always admitted: its run may show that
   * batch times have changed.
   */
  private placesFor(
    request: QueuedRequest,
    within: number,
    now: number,
    work: PoolLoad,
  ): readonly Place[] | undefined {
    const { lane, size, whole } = request;
    const planned = this.plannedOf(lane.limits);
    const { times } = planned;
    const { partitions } = work;
    if (!times.isBelieved || partitions === 0) {
      return undefined;
    }
    const rowsAhead = this.rowsAhead(request);
    const isLast = rowsAhead === this.queued && !lane.isAlone;
    const ahead = this.workAhead(rowsAhead, isLast ? planned : undefined);
    if (!ahead) {
      return undefined;
    }
    const isFirst = work.idle > 0 && this.queued === 0;
    const due = now + within;
    const places: Place[] = [];
    let open = isLast ? planned.open : undefined;
    for (let offset = 0; offset < size;) {
      const start = startOf(work.busyUntil(now), ahead, work.idle);
      let place = open && placeIn(planned, open, request, offset, now, due, start);
      let most = open ? planned.workOf(open) : 0;
      if (!open) {
        const fitting = newBatch(planned, request, within, start, partitions);
        if (!fitting.isWorthIt && !isFirst) {
          throw this.late(request, fitting.needed, within);
        }
        most = fitting.isWorthIt ? fitting.most : Math.max(fitting.most, fitting.lasting);
        if (size === 1 && !start.isImmediate && !planned.carries(most, partitions)) {
          most = Math.min(most, planned.trial());
        }
        const empty = { rows: 0, sum: 0, largest: 0, due, most, time: 0 };
        const count = whole ? size : Math.max(1, planned.roomIn(empty, request, offset, size));
        place = { isNew: true, offset, count, due, most };
      }
      if (place) {
        places.push(place);
        offset += place.count;
      }
      addTo(ahead, planned.timeAhead(most));
      open = undefined;
    }
    return places;
  }

  private late(request: QueuedRequest, needed: number, within: number): Error {
    const { latencyTarget = Infinity } = request.lane.limits;
    const retryAfter = Math.max(1, Math.ceil((needed - within) / 1000));
    const what = `Serving "${this.options.name}" would need about ${Math.ceil(needed)} ms to answer and`;
    return withoutStack(() =>
      this.options.hasTargets && within === latencyTarget
        ? new OverloadedError(`${what} has a latencyTarget of ${within} ms; call again later`, {
            retryAfter,
          })
        : new DeadlineTooShortError(
            `${what} the call has ${Math.floor(within)} ms; call again later, or with a longer timeout`,
            { retryAfter },
          ),
    );
  }

  /**
   * The batches before a call's rows, without the one that takes them if they are their lane's
   * last; undefined while we know too little.
   */
  private workAhead(rowsAhead: number, last: PlannedBatches | undefined): WorkAhead | undefined {
    const ahead = { batches: 0, time: 0, squares: 0 };
    const share = this.queued === 0 ? 0 : rowsAhead / this.queued;
    for (const planned of share > 0 ? this.planned.values() : []) {
      if (planned.rows > 0 && !planned.times.isBelieved) {
        return undefined;
      }
      const { batches, time, squares } = planned.ahead(planned !== last);
      ahead.batches += batches * share;
      ahead.time += time * share;
      ahead.squares += squares * share;
    }
    return ahead;
  }

  private rowsAhead({ priority, tenant, size }: QueuedRequest): number {
    let ahead = 0;
    for (const [level, { rows, named, tenants }] of this.priorities) {
      if (level > priority) {
        ahead += rows;
      } else if (level === priority) {
        const own = tenant === '' ? rows - named : (tenants.get(tenant) ?? 0);
        const others = tenants.size + (rows > named ? 1 : 0) - (own > 0 ? 1 : 0);
        ahead += own + Math.min(rows - own, (own + size) * others);
      }
    }
    return ahead;
  }

  private secondsFor(rows: number, limits: Limits | undefined, { partitions }: PoolLoad): number {
    const own = limits ? [this.plannedOf(limits)] : [];
    const known = [...own, ...this.planned.values()].find(({ times }) => times.largest > 0);
    if (!known) {
      // Spread, to keep the callers from coming back together.
      return 1 + Math.floor(Math.random() * SECONDS_UNKNOWN);
    }
    const batches = rows / (limits ?? known.limits).batchSize / Math.max(1, partitions);
    return Math.max(1, Math.ceil((known.times.estimate(known.mostWork)! * batches) / 1000));
  }

  private countRows(request: QueuedRequest, rows: number): void {
    const { lane, priority, tenant } = request;
    this.queued += rows;
    this.room.count(request, rows);
    this.plannedOf(lane.limits).rows += rows;
    const waiting = this.waitingOf(priority);
    waiting.rows += rows;
    if (tenant !== '') {
      waiting.named += rows;
      add(waiting.tenants, tenant, rows);
    }
  }

  private plannedOf(limits: Limits): PlannedBatches {
    if (this.lastPlanned?.limits !== limits) {
      this.lastPlanned = this.planned.get(limits);
      if (!this.lastPlanned) {
        const { like } = limits;
        this.lastPlanned = new PlannedBatches(
          limits,
          this.options.budget,
          like && this.plannedOf(like).times,
        );
        this.planned.set(limits, this.lastPlanned);
      }
    }
    return this.lastPlanned;
  }

  private waitingOf(priority: number): QueuedAhead {
    if (this.lastWaiting?.priority !== priority) {
      this.lastWaiting = this.priorities.get(priority) ?? {
        priority,
        rows: 0,
        named: 0,
        tenants: new Map(),
      };
      this.priorities.set(priority, this.lastWaiting);
    }
    return this.lastWaiting;
  }
}

/** Most rows of one call in a queue: half, if it must leave the rest to others. */
export function mostRowsOf(
  { priority, tenant }: Pick<QueuedRequest, 'priority' | 'tenant'>,
  maxRows: number,
): number {
  return priority < 0 || tenant !== '' ? Math.floor(maxRows / 2) : maxRows;
}

function add(counts: Map<string, number>, key: string, rows: number): void {
  const count = (counts.get(key) ?? 0) + rows;
  if (count === 0) {
    counts.delete(key);
  } else {
    counts.set(key, count);
  }
}

function placeIn(
  planned: PlannedBatches,
  open: PlannedBatch,
  request: QueuedRequest,
  offset: number,
  now: number,
  callDue: number,
  start: Start,
): Place | undefined {
  const { size, whole } = request;
  // On an idle partition a batch may outgrow its plan.
  const limit = start.isImmediate ? planned.mostWork : open.most;
  const count = planned.roomIn(open, request, offset, size, limit);
  if (count === 0 || (whole && count < size)) {
    return undefined;
  }
  const work = planned.workWith(open, request, offset, count);
  const due = Math.min(open.due, callDue);
  // The other calls were admitted for this size, so they are answered in time.
  const earliest = work <= open.most && open.most < Infinity ? callDue : due;
  return needs(planned, work, start) <= earliest - now
    ? { isNew: false, offset, count, due, most: work }
    : undefined;
}

function newBatch(
  planned: PlannedBatches,
  request: QueuedRequest,
  within: number,
  start: Start,
  partitions: number,
): { most: number; lasting: number; isWorthIt: boolean; needed: number } {
  const { size, whole } = request;
  const own = whole ? planned.workWith(NO_BATCH, request, 0, size) : 0;
  const limit = Math.max(own, planned.limit);
  const most = planned.largestWithin(limit, (work) => needs(planned, work, start) <= within);
  const lasting = Math.max(own, Math.min(limit, planned.lastingWork(within, partitions)));
  const isWorthIt =
    most > 0 &&
    most >= own &&
    (start.isImmediate || most >= lasting || planned.carries(most, partitions));
  return { most, lasting, isWorthIt, needed: needs(planned, lasting, start) };
}

/** Milliseconds until a batch with this work has run, with overruns. */
function needs(planned: PlannedBatches, work: number, start: Start): number {
  const time = planned.times.hoped(work);
  const overrun = planned.times.overrun - 1;
  // An idle partition would run a batch with the first row anyway.
  const margin = start.isImmediate
    ? time - planned.times.hoped(0)
    : Math.sqrt(start.squares + time ** 2);
  return start.time + time + overrun * margin;
}

function startOf(partitions: BusyUntil[], ahead: WorkAhead, idle: number): Start {
  const { batches, time, squares } = ahead;
  const mean = batches === 0 ? 0 : time / batches;
  const meanSquare = batches === 0 ? 0 : squares / batches;
  const [only] = partitions;
  if (only && partitions.length === 1) {
    const isImmediate = batches < idle;
    return { time: only.time + time, squares: only.squares + squares, isImmediate };
  }
  const followed = Math.min(batches, BATCHES_FOLLOWED);
  const shared = (batches - followed) / partitions.length;
  partitions.forEach((each) => {
    each.time += shared * mean;
    each.squares += shared * meanSquare;
  });
  for (let left = followed; left > 0; left--) {
    const next = firstFree(partitions);
    next.time += Math.min(1, left) * mean;
    next.squares += Math.min(1, left) * meanSquare;
  }
  const first = firstFree(partitions);
  return { time: first.time, squares: first.squares, isImmediate: batches < idle };
}

function firstFree(partitions: readonly BusyUntil[]): BusyUntil {
  return partitions.reduce((first, next) => (next.time < first.time ? next : first), {
    time: Infinity,
    squares: 0,
  });
}

function addTo(ahead: WorkAhead, time: number): void {
  ahead.batches++;
  ahead.time += time;
  ahead.squares += time ** 2;
}
