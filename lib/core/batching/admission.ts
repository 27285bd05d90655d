import { countOfRows } from '../format.js';
import {
  DeadlineExceededError,
  OverloadedError,
  RequestTooLargeError,
  withoutStack,
} from '../errors.js';
import type { Budget } from './fill.js';
import { type Limits, paddedSize, type QueuedRequest } from './queued-request.js';
import { LearnedTimes } from './run-times.js';

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
  readonly policies?: readonly AdmissionPolicy[];
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

/** A feature's: refuses requests that have room in a queue, and limits its batches. */
export interface AdmissionRule {
  /** Called first, also if there is no room. */
  arrived?(request: QueuedRequest, now: number): void;
  /** @throws OverloadedError, or another ServingError, for a request that it refuses */
  check?(request: QueuedRequest, now: number, work: PoolLoad): void;
  /** Called when no rule has refused the request. */
  enter?(request: QueuedRequest): void;
  /** False if the request may not join a batch, of up to `rows`, that is about to run. */
  mayJoin?(request: QueuedRequest, now: number, rows: number): boolean;
  /** Called in place of {@link enter} for a request that has joined such a batch. */
  join?(request: QueuedRequest): void;
  enterAgain?(request: QueuedRequest, rows: number): void;
  leave?(request: QueuedRequest, rows: number): void;
  targetOf?(limits: Limits): LatencyTarget | undefined;
  /** Rows of a full batch, of at most `opened`. */
  sizeOf?(limits: Limits, opened: number): number;
  mostCostOf?(limits: Limits): number;
}

/** Opens a rule for each queue. */
export interface AdmissionPolicy {
  /** False if the rule opens with the first call that has a deadline. */
  isForAll(options: AdmissionOptions): boolean;
  /** @param queued requests that have entered before */
  open(
    options: AdmissionOptions,
    times: LearnedTimes,
    queued?: Iterable<QueuedRequest>,
  ): AdmissionRule;
}

/** Before any batch has run, Retry-After is 1 to this many seconds. */
const SECONDS_UNKNOWN = 3;

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
 * Admission control: immediately refuses a request without room, or that a rule refuses.
 */
export class Admission {
  /** Rows in its queue. */
  queued = 0;
  private readonly times: LearnedTimes;
  private readonly rules: AdmissionRule[];
  /** Policies whose rules open with the first deadline. */
  private forDeadlines: readonly AdmissionPolicy[];

  constructor(
    private readonly options: AdmissionOptions,
    private readonly room: QueueRoom,
  ) {
    this.times = new LearnedTimes(options.budget);
    const { policies = [] } = options;
    const open = policies.filter((policy) => policy.isForAll(options));
    this.rules = open.map((policy) => policy.open(options, this.times));
    this.forDeadlines = policies.filter((policy) => !open.includes(policy));
  }

  /**
   * @throws RequestTooLargeError if the rows don't fit into an empty queue
   * @throws OverloadedError if there is no room, or it would miss its lane's target
   * @throws DeadlineExceededError if its deadline has passed
   * @throws DeadlineTooShortError if we couldn't answer it in time
   */
  enter(request: QueuedRequest, now: number, work: PoolLoad): void {
    const { deadline, size } = request;
    const { rules } = this;
    for (const rule of rules) {
      rule.arrived?.(request, now);
    }
    const lack = this.room.lackFor(request);
    if (lack) {
      throw this.overloaded(lack, request.lane.limits, work);
    }
    if (deadline <= now) {
      throw this.tooLate(deadline, now);
    }
    for (const rule of rules) {
      rule.check?.(request, now, work);
    }
    for (const rule of rules) {
      rule.enter?.(request);
    }
    this.countRows(request, size);
  }

  /** True if the request joins a batch that has left the queue. */
  joins(request: QueuedRequest, now: number, rows: number): boolean {
    const { rules } = this;
    if (!rules.every((rule) => rule.mayJoin?.(request, now, rows) ?? true)) {
      return false;
    }
    for (const rule of rules) {
      rule.join?.(request);
    }
    return true;
  }

  /** True until {@link heedDeadlines} is called, if there are rules for it. */
  get ignoresDeadlines(): boolean {
    return this.forDeadlines.length > 0;
  }

  heedDeadlines(queued: Iterable<QueuedRequest>): void {
    const before = [...queued];
    const { options, times } = this;
    this.rules.push(...this.forDeadlines.map((policy) => policy.open(options, times, before)));
    this.forDeadlines = [];
  }

  enterAgain(request: QueuedRequest, rows: number): void {
    for (const rule of this.rules) {
      rule.enterAgain?.(request, rows);
    }
    this.countRows(request, rows);
  }

  leave(request: QueuedRequest, rows: number): void {
    for (const rule of this.rules) {
      rule.leave?.(request, rows);
    }
    this.countRows(request, -rows);
  }

  /** `work` is the batch's rows with padding, or their cost. */
  learn(limits: Limits, work: number, milliseconds: number): void {
    this.times.of(limits).learn(work, milliseconds);
  }

  /** Expected milliseconds; undefined while we know too little. */
  timeOf(limits: Limits, rows: number, work = this.workOf(limits, rows)): number | undefined {
    return this.times.of(limits).expected(work);
  }

  /** Least milliseconds; 0 while we know too little. An untried size may be fast. */
  leastTimeOf(limits: Limits, rows: number, work = this.workOf(limits, rows)): number {
    const times = this.times.of(limits);
    return times.isBelieved ? times.hoped(work) : 0;
  }

  /** Milliseconds that one batch surely saves. */
  gainOf(limits: Limits, first: number, others: number, cost?: number): number {
    const times = this.times.of(limits);
    const workOf = (rows: number): number => (cost ? rows * cost : this.workOf(limits, rows));
    return times.isBelieved
      ? times.least(workOf(first)) +
          times.least(workOf(others)) -
          times.hoped(workOf(first + others))
      : 0;
  }

  targetOf(limits: Limits): LatencyTarget | undefined {
    for (const rule of this.rules) {
      const target = rule.targetOf?.(limits);
      if (target) {
        return target;
      }
    }
    return undefined;
  }

  /** Rows of a full batch now, if its window opened with this size. */
  sizeOf(limits: Limits, opened = limits.batchSize): number {
    let size = opened;
    for (const rule of this.rules) {
      size = rule.sizeOf?.(limits, size) ?? size;
    }
    return size;
  }

  mostCostOf(limits: Limits): number {
    let most = Infinity;
    for (const rule of this.rules) {
      most = Math.min(most, rule.mostCostOf?.(limits) ?? most);
    }
    return most;
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

  private secondsFor(rows: number, limits: Limits | undefined, { partitions }: PoolLoad): number {
    const known = this.times.known(limits);
    if (!known) {
      // Spread, to keep the callers from coming back together.
      return 1 + Math.floor(Math.random() * SECONDS_UNKNOWN);
    }
    const [{ batchSize }, times] = known;
    const milliseconds = times.estimate(this.options.budget?.most ?? batchSize)!;
    const batches = rows / (limits?.batchSize ?? batchSize) / Math.max(1, partitions);
    return Math.max(1, Math.ceil((milliseconds * batches) / 1000));
  }

  /** The work of rows that cost 1 each, if rows have costs. */
  private workOf(limits: Limits, rows: number): number {
    return this.options.budget ? rows : paddedSize(limits, rows);
  }

  private countRows(request: QueuedRequest, rows: number): void {
    this.queued += rows;
    this.room.count(request, rows);
  }
}

export function add(counts: Map<string, number>, key: string, rows: number): void {
  const count = (counts.get(key) ?? 0) + rows;
  if (count === 0) {
    counts.delete(key);
  } else {
    counts.set(key, count);
  }
}

/** Most rows of one call in a queue: half, if it must leave the rest to others. */
export function mostRowsOf(
  { priority, tenant }: Pick<QueuedRequest, 'priority' | 'tenant'>,
  maxRows: number,
): number {
  return priority < 0 || tenant !== '' ? Math.floor(maxRows / 2) : maxRows;
}
