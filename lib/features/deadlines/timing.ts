import { DeadlineTooShortError, OverloadedError, withoutStack } from '../../core/errors.js';
import {
  add,
  type AdmissionOptions,
  type AdmissionRule,
  type BusyUntil,
  type LatencyTarget,
  type PoolLoad,
} from '../../core/batching/admission.js';
import { type Budget, Fill, loadOf, UNLIMITED } from '../../core/batching/fill.js';
import { type Limits, paddedSize, type QueuedRequest } from '../../core/batching/queued-request.js';
import type { LearnedTimes, RunTimes } from '../../core/batching/run-times.js';

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

const NO_TARGET: { readonly latencyTarget?: number } = {};

interface QueuedAhead {
  rows: number;
  /** Rows of named tenants. */
  named: number;
  readonly tenants: Map<string, number>;
}

/**
 * Refuses calls that would miss their deadline or their lane's latency target.
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
export class Timing implements AdmissionRule {
  private rows = 0;
  private readonly priorities = new Map<number, QueuedAhead>();
  private readonly planned = new Map<Limits, PlannedBatches>();
  /** Places of the request that was checked last; undefined if it may go anywhere. */
  private plan: readonly Place[] | undefined;

  constructor(
    private readonly options: AdmissionOptions,
    private readonly times: LearnedTimes,
    queued: Iterable<QueuedRequest> = [],
  ) {
    for (const request of new Set(queued)) {
      this.enterAgain(request, request.waiting, request.lane.isAlone);
    }
  }

  arrived(request: QueuedRequest, now: number): void {
    const within = this.withinOf(request, now);
    if (within < Infinity) {
      this.plannedOf(request.lane.limits).arrived(request, now, Math.max(within, 1));
    }
  }

  check(request: QueuedRequest, now: number, work: PoolLoad): void {
    const within = this.withinOf(request, now);
    this.plan = within < Infinity ? this.planFor(request, within, now, work) : undefined;
  }

  enter(request: QueuedRequest): void {
    const { lane, size } = request;
    const planned = this.plannedOf(lane.limits);
    this.count(request, size);
    if (!this.plan) {
      planned.add(request, size, lane.isAlone);
    }
    for (const { isNew, due, most, offset, count } of this.plan ?? []) {
      if (isNew) {
        planned.begin(due, most);
      } else {
        planned.open!.most = Math.max(most, planned.open!.most);
        planned.open!.due = Math.min(due, planned.open!.due);
      }
      planned.extend(request, offset, count);
    }
  }

  /** A target sizes the batch, so its calls don't join. */
  mayJoin({ lane: { limits }, deadline }: QueuedRequest, now: number, rows: number): boolean {
    const { times, budget } = this.plannedOf(limits);
    const least = times.isBelieved ? times.hoped(budget ? rows : paddedSize(limits, rows)) : 0;
    return limits.latencyTarget === undefined && now + least < deadline;
  }

  enterAgain(request: QueuedRequest, rows: number, isAlone = true): void {
    this.count(request, rows);
    this.plannedOf(request.lane.limits).add(request, rows, isAlone);
  }

  leave(request: QueuedRequest, rows: number): void {
    this.count(request, -rows);
    this.plannedOf(request.lane.limits).remove(rows);
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

  sizeOf(limits: Limits, opened: number): number {
    const { mostOfNext, budget } = this.plannedOf(limits);
    const most = this.options.hasTargets ? Math.min(opened, limits.batchSize) : opened;
    return budget ? most : Math.max(1, Math.min(most, mostOfNext));
  }

  mostCostOf(limits: Limits): number {
    return Math.max(Number.MIN_VALUE, this.plannedOf(limits).mostOfNext);
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
  private planFor(
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
    const isLast = rowsAhead === this.rows && !lane.isAlone;
    const ahead = this.workAhead(rowsAhead, isLast ? planned : undefined);
    if (!ahead) {
      return undefined;
    }
    const isFirst = work.idle > 0 && this.rows === 0;
    const due = now + within;
    const plan: Place[] = [];
    let open = isLast ? planned.open : undefined;
    for (let offset = 0; offset < size;) {
      const start = startOf(work.busyUntil(now), ahead, work.idle);
      let place = open && placeIn(planned, open, request, offset, now, due, start);
      let most = open ? planned.workOf(open.fill) : 0;
      if (!open) {
        const fitting = newBatch(planned, request, within, start, partitions);
        if (!fitting.isWorthIt && !isFirst) {
          throw this.late(request, fitting.needed, within);
        }
        most = fitting.isWorthIt ? fitting.most : Math.max(fitting.most, fitting.lasting);
        if (size === 1 && !start.isImmediate && !planned.carries(most, partitions)) {
          most = Math.min(most, planned.trial());
        }
        const room = planned.empty().fitting(request, offset, size - offset, most);
        const count = whole ? size : Math.max(1, room);
        place = { isNew: true, offset, count, due, most };
      }
      if (place) {
        plan.push(place);
        offset += place.count;
      }
      addTo(ahead, planned.timeAhead(most));
      open = undefined;
    }
    return plan;
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
   * The batches before a call's rows, without `last`, which takes them; undefined while we know too
   * little.
   */
  private workAhead(rowsAhead: number, last: PlannedBatches | undefined): WorkAhead | undefined {
    const ahead = { batches: 0, time: 0, squares: 0 };
    const share = this.rows === 0 ? 0 : rowsAhead / this.rows;
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

  private count({ lane, priority, tenant }: QueuedRequest, rows: number): void {
    this.rows += rows;
    this.plannedOf(lane.limits).rows += rows;
    const waiting = this.waitingOf(priority);
    waiting.rows += rows;
    if (tenant !== '') {
      waiting.named += rows;
      add(waiting.tenants, tenant, rows);
    }
  }

  private plannedOf(limits: Limits): PlannedBatches {
    let planned = this.planned.get(limits);
    if (!planned) {
      planned = new PlannedBatches(limits, this.times.of(limits), this.options.budget);
      this.planned.set(limits, planned);
    }
    return planned;
  }

  private waitingOf(priority: number): QueuedAhead {
    let waiting = this.priorities.get(priority);
    if (!waiting) {
      waiting = { rows: 0, named: 0, tenants: new Map() };
      this.priorities.set(priority, waiting);
    }
    return waiting;
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
  const count = open.fill.fitting(request, offset, size - offset, limit);
  if (count === 0 || (whole && count < size)) {
    return undefined;
  }
  const work = planned.workWith(open.fill, request, offset, count);
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
  const own = whole ? planned.workWith(planned.empty(), request, 0, size) : 0;
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

/** A batch may be this many times as large as any before. */
const MOST_GROWTH = 2;

/** We measure a load over this many times the calls' time: less follows chance. */
const PROMISES_MEASURED = 20;

const BATCHES_BETWEEN_TRIALS = 16;

/** Between two larger than the most efficient size, whose times may come from a slow machine. */
const BATCHES_BETWEEN_LARGE_TRIALS = 32;

interface PlannedBatch {
  readonly fill: Fill;
  /** When all its rows are due. */
  due: number;
  /** The most work with which it is in time. */
  most: number;
  /** Expected run time in milliseconds, once it takes no more rows. */
  time: number;
}

interface WorkAhead {
  /** A fraction if others' rows share the batches. */
  batches: number;
  /** Sums of expected milliseconds, and of their squares. */
  time: number;
  squares: number;
}

/**
 * The batches that queued rows will form, in arrival order, for lanes with the same limits.
 *
 * Only this class decides how large a batch becomes. A call is admitted with a place in a planned
 * batch, which takes no more work (`most`) than all its calls can bear.
 */
class PlannedBatches {
  rows = 0;
  private readonly batches: PlannedBatch[] = [];
  /** All planned batches but the open one. */
  private readonly full: WorkAhead = { batches: 0, time: 0, squares: 0 };
  private last = { within: NaN, load: 0, batches: 0, work: 0 };
  /** Batch counts from which on we may try a smaller size, and a larger one. */
  private nextTrial = 0;
  private nextLargeTrial = 0;
  private readonly lasting = new ArrivalRate();
  private readonly recent = new ArrivalRate();

  constructor(
    readonly limits: Limits,
    readonly times: RunTimes,
    /** If rows have costs. */
    readonly budget?: Budget,
  ) {}

  /** The last batch, which may take more rows. */
  get open(): PlannedBatch | undefined {
    return this.batches.at(-1);
  }

  ahead(withOpen: boolean): WorkAhead {
    const { open, full } = this;
    if (!withOpen || !open) {
      return full;
    }
    const time = this.timeAhead(this.workOf(open.fill));
    return { batches: full.batches + 1, time: full.time + time, squares: full.squares + time ** 2 };
  }

  get mostOfNext(): number {
    return this.batches[0]?.most ?? Infinity;
  }

  extend(request: QueuedRequest, offset: number, count: number): void {
    this.open!.fill.add(loadOf(request, offset, count));
  }

  begin(due: number, most: number): void {
    const { open, full, times } = this;
    if (most > times.best) {
      this.nextLargeTrial = times.count + BATCHES_BETWEEN_LARGE_TRIALS;
    }
    if (open) {
      const work = this.workOf(open.fill);
      open.time = this.timeAhead(work);
      if (open.due < Infinity && open.most === Infinity) {
        open.most = work;
      }
      full.batches++;
      full.time += open.time;
      full.squares += open.time ** 2;
    }
    this.batches.push({ fill: this.empty(), due, most, time: 0 });
  }

  add(request: QueuedRequest, rows: number, isAlone = false): void {
    const { size } = request;
    for (let offset = size - rows; offset < size;) {
      const { open } = this;
      const room =
        !open || (isAlone && offset === size - rows)
          ? 0
          : open.fill.fitting(request, offset, size - offset, open.most);
      if (room === 0) {
        this.begin(Infinity, Infinity);
      }
      const count = Math.min(size - offset, Math.max(1, room));
      this.extend(request, offset, count);
      offset += count;
    }
  }

  /** A batch without rows. */
  empty(): Fill {
    return new Fill(this.budget ?? UNLIMITED, this.limits.batchSize);
  }

  /** Removes rows from the next batches: they run, or are over. */
  remove(rows: number): void {
    const { batches, full } = this;
    for (let left = rows; left > 0 && batches.length > 0;) {
      const next = batches[0]!;
      const { fill } = next;
      if (fill.rows > left) {
        fill.remove(left);
        return;
      }
      left -= fill.rows;
      batches.shift();
      if (batches.length > 0) {
        full.batches--;
        full.time -= next.time;
        full.squares -= next.time ** 2;
      }
    }
    if (batches.length <= 1) {
      full.batches = full.time = full.squares = 0;
    }
  }

  workOf({ rows, cost }: Fill): number {
    return this.budget ? cost : paddedSize(this.limits, rows);
  }

  /** The most that the limits allow. */
  get mostWork(): number {
    return this.budget ? this.budget.most : this.limits.batchSize;
  }

  /** The most work of a planned batch. Only rare trials exceed the most efficient size. */
  get limit(): number {
    const { largest, best, count } = this.times;
    const least = this.budget ? 0 : 1;
    const limit = Math.min(this.mostWork, Math.max(least, MOST_GROWTH * largest));
    return count >= this.nextLargeTrial ? limit : Math.min(limit, best);
  }

  /** Rarely an untried smaller size, which may be more efficient; otherwise Infinity. */
  trial(): number {
    const { untriedBelow = Infinity, count } = this.times;
    if (untriedBelow === Infinity || count < this.nextTrial) {
      return Infinity;
    }
    this.nextTrial = count + BATCHES_BETWEEN_TRIALS;
    return untriedBelow;
  }

  /** The largest work in time, up to the limit. Run times don't decrease with the work. */
  largestWithin(limit: number, isInTime: (work: number) => boolean): number {
    if (this.budget) {
      return isInTime(limit) ? limit : bisect(0, limit, limit / 64, isInTime);
    }
    const isRight = (rows: number): boolean => isInTime(paddedSize(this.limits, rows));
    return isRight(limit) ? limit : Math.floor(bisect(0, limit, 1, (n) => isRight(Math.floor(n))));
  }

  /** Measures arriving work, also of calls that we refuse. */
  arrived(request: QueuedRequest, now: number, within: number): void {
    const work = this.budget ? loadOf(request, 0, request.size).sum : request.size;
    this.lasting.add(work, now, PROMISES_MEASURED * within);
    this.recent.add(work, now, within);
  }

  /**
   * The size of batches under a lasting load: the most work w that is collected and run in time,
   * `r T(w) + min(T(w), w / L) <= D`. A batch collects while the one before it runs, or until w has
   * arrived.
   */
  lastingWork(within: number, partitions: number): number {
    const { times, last } = this;
    const load = this.lasting.rate / partitions;
    if (last.within !== within || last.load !== load || last.batches !== times.count) {
      const work = this.largestWithin(this.limit, (each) => {
        const time = times.hoped(each);
        return times.overrun * time + Math.min(time, each / load) <= within;
      });
      this.last = { within, load, batches: times.count, work };
    }
    return this.last.work;
  }

  carries(work: number, partitions: number): boolean {
    const load = Math.max(this.lasting.rate, this.recent.rate);
    return work * partitions >= load * this.times.hoped(work);
  }

  workWith(fill: Fill, request: QueuedRequest, offset: number, count: number): number {
    return this.budget
      ? fill.costWith(loadOf(request, offset, count))
      : paddedSize(this.limits, fill.rows + count);
  }

  /** Expected milliseconds. */
  timeAhead(work: number): number {
    const { times } = this;
    return work > times.largest ? times.hoped(work) : (times.estimate(work) ?? 0);
  }
}

/** Arriving work per millisecond: an average that forgets. */
class ArrivalRate {
  private work = 0;
  private time = 0;
  private arriving = 0;
  private arrivedAt = NaN;

  /** `memory` is in milliseconds. */
  add(work: number, now: number, memory: number): void {
    // One turn's work arrives at one time, and finds one rate.
    if (now !== this.arrivedAt) {
      const passed = Number.isNaN(this.arrivedAt) ? 0 : now - this.arrivedAt;
      const kept = Math.exp(-passed / memory);
      this.work = (this.work + this.arriving) * kept;
      this.time = this.time * kept + memory * (1 - kept);
      this.arriving = 0;
      this.arrivedAt = now;
    }
    this.arriving += work;
  }

  get rate(): number {
    return this.time === 0 ? 0 : this.work / this.time;
  }
}

/** The largest value found that meets the condition, which holds for `low`. */
function bisect(
  low: number,
  high: number,
  precision: number,
  holds: (value: number) => boolean,
): number {
  let [good, bad] = [low, high];
  while (bad - good > precision) {
    const middle = (good + bad) / 2;
    const value = precision === 1 ? Math.floor(middle) : middle;
    if (value === good) {
      break;
    }
    if (holds(value)) {
      good = value;
    } else {
      bad = value;
    }
  }
  return good;
}
