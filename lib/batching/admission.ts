import {
  DeadlineExceededError,
  DeadlineTooShortError,
  OverloadedError,
  RequestTooLargeError,
  withoutStack,
} from '../errors.js';
import { BatchTimeModel } from './batch-time-model.js';
import type { BusyUntil, LatencyTarget } from './latency-target.js';
import { type Limits, paddedSize, type QueuedRequest } from './queued-request.js';

export interface AdmissionOptions {
  readonly name: string;
  /** The largest number of rows in the queue. */
  readonly maxRows: number;
  /** The largest total cost of the rows in the queue. */
  readonly maxCost?: number | undefined;
  /** The number of queued rows that this many idle partitions take at the end of the turn. */
  readonly takenBy: (idle: number) => number;
}

/** Safety factor on the expected time of a batch when rows are dropped as late. */
export const TIME_TO_SPARE = 1.5;

/**
 * Batches added to the expected waiting time as a margin. Under overload the queue is filled up to
 * this limit, so half of the rows at its end would be late if the limit were the expected time
 * itself; and rows that turn out late after they ran have kept others from running. In a queue of
 * less than one batch, a row needs the time for which it is kept: its batch, and half as long again.
 */
const BATCHES_TO_SPARE = 1;

/** The load of the partitions. */
export interface PoolLoad {
  /** The partitions that take batches. */
  readonly partitions: number;
  /** The partitions that are idle. */
  readonly idle: number;
  /** Expected milliseconds until the running batches have ended, summed over all partitions. */
  runningUntil(now: number): number;
  /** The work of each partition that takes batches. */
  busyUntil(now: number): BusyUntil[];
}

/** The queued rows of one priority. */
interface QueuedAhead {
  readonly priority: number;
  rows: number;
  /** The rows of named tenants. */
  named: number;
  readonly tenants: Map<string, number>;
}

/** The learned batch times of all lanes with the same limits. */
export interface LaneModel {
  readonly limits: Limits;
  readonly model: BatchTimeModel;
  rows: number;
}

/**
 * Admission control of a queue: counts the queued rows, and refuses at once a request that has no
 * room or that could not be answered before its deadline.
 *
 * A full queue must stay open for callers with few rows in it. So calls of a priority below 0 leave
 * half of it to others, and a tenant may have no more rows in it than there is room left (dynamic
 * thresholds: Choudhury and Hahne, 1998): half of the queue for one tenant alone, a third each for
 * two, and always some room for one more.
 */
export class Admission {
  protected rows = 0;
  private cost = 0;
  private readonly tenants = new Map<string, number>();
  private readonly priorities = new Map<number, QueuedAhead>();
  protected readonly known = new Map<Limits, LaneModel>();
  /** The last result of {@link knownOf}: most calls ask for the same. */
  private lastWaiting: QueuedAhead | undefined;
  private lastKnown: LaneModel | undefined;

  constructor(protected readonly options: AdmissionOptions) {}

  /** The queued rows. */
  get depth(): number {
    return this.rows;
  }

  /**
   * Admits the rows of the request, or throws.
   *
   * @throws RequestTooLargeError for more rows than the queue can ever hold
   * @throws OverloadedError when there is no room
   * @throws DeadlineExceededError when its deadline has passed
   * @throws DeadlineTooShortError when it could not be answered in time
   */
  enter(request: QueuedRequest, now: number, work: PoolLoad): void {
    this.check(request, now, work);
    this.count(request, request.size);
  }

  protected check(request: QueuedRequest, now: number, work: PoolLoad): void {
    this.checkRoom(request, work);
    this.checkDeadline(request, now, work);
  }

  /** Counts rows of the request as queued again. */
  count(request: QueuedRequest, rows: number): void {
    const { lane, priority, tenant, cost, size } = request;
    this.rows += rows;
    if (cost !== 0 || this.cost !== 0) {
      this.cost = this.rows === 0 ? 0 : this.cost + (cost * rows) / size;
    }
    this.knownOf(lane.limits).rows += rows;
    const waiting = this.waitingOf(priority);
    waiting.rows += rows;
    if (tenant !== '') {
      waiting.named += rows;
      add(waiting.tenants, tenant, rows);
      add(this.tenants, tenant, rows);
    }
  }

  /** Counts rows of the request as no longer queued. */
  leave(request: QueuedRequest, rows: number): void {
    this.count(request, -rows);
  }

  /** Learns the run time of a batch. */
  learn(limits: Limits, rows: number, milliseconds: number): void {
    this.knownOf(limits).model.learn(rows, milliseconds);
  }

  /** Expected milliseconds of a batch, or undefined while too little is known. */
  timeOf(limits: Limits, rows: number): number | undefined {
    return this.knownOf(limits).model.predict(paddedSize(limits, rows));
  }

  /** The latency target of the lanes with these limits. */
  targetOf(_limits: Limits): LatencyTarget | undefined {
    return undefined;
  }

  /** The number of rows at which a batch is full now whose window opened with this size. */
  sizeOf({ batchSize }: Limits, opened = batchSize): number {
    return opened;
  }

  private checkRoom(request: QueuedRequest, work: PoolLoad): void {
    const { maxRows, maxCost = Infinity } = this.options;
    const { size, cost, priority, tenant } = request;
    if (2 * (this.rows + size) <= maxRows && maxCost === Infinity) {
      // Half of the queue is free: there is room for every priority and tenant.
      return;
    }
    const half = Math.floor(maxRows / 2);
    const queued = this.queuedBehind(request, work);
    const share = this.rows === 0 ? 1 : queued / this.rows;
    const rows = queued + size;
    if (size > maxRows) {
      throw this.tooLarge(`${maxRows} rows and never ${size}`, 'queue.maxRows');
    }
    if (cost > maxCost) {
      throw this.tooLarge(`a cost of ${maxCost} and never ${cost}`, 'queue.maxCost');
    }
    if (size > mostRowsOf(request, maxRows)) {
      throw this.tooLarge(
        `${half} rows of a tenant, or of a priority below 0, and never ${size}`,
        'queue.maxRows',
      );
    }
    if (rows > maxRows) {
      const why =
        `has ${Math.round(queued)} of at most ${maxRows} rows in its queue and no ` +
        `room for ${size} more; call again later, or raise queue.maxRows`;
      throw this.overloaded(why, rows - maxRows, request, work);
    }
    const queuedCost = this.cost * share;
    if (queuedCost + cost > maxCost) {
      const why =
        `has rows in its queue that cost ${queuedCost} of at most ${maxCost} and ` +
        `no room for ${cost} more; call again later, or raise queue.maxCost`;
      throw this.overloaded(
        why,
        (queued * (queuedCost + cost - maxCost)) / queuedCost,
        request,
        work,
      );
    }
    if (priority < 0 && rows > half) {
      const why =
        `has ${Math.round(queued)} rows in its queue, of which calls of priority ` +
        `${priority} leave half of ${maxRows} to others; call again later`;
      throw this.overloaded(why, rows - half, request, work);
    }
    const own = tenant === '' ? 0 : (this.tenants.get(tenant) ?? 0) * share + size;
    if (own > maxRows - rows) {
      const why =
        `would have ${Math.round(own)} rows of tenant "${tenant}" in its queue and ` +
        `room for ${Math.round(maxRows - rows)} of others, and a tenant may have no more than ` +
        'is left to others; call again later';
      // Each of its rows that runs counts twice: the tenant has one row less, and others have room
      // for one more.
      throw this.overloaded(why, (own - (maxRows - rows)) / 2, request, work);
    }
  }

  /**
   * The queued rows without those that idle partitions take at the end of the turn. Computed only
   * where that decides whether there is room.
   */
  private queuedBehind({ size, cost }: QueuedRequest, { idle }: PoolLoad): number {
    const { maxRows, maxCost = Infinity, takenBy } = this.options;
    const isClose = 2 * (this.rows + size) > maxRows || this.cost + cost > maxCost;
    return isClose && idle > 0 ? this.rows - takenBy(idle) : this.rows;
  }

  private tooLarge(what: string, option: string): Error {
    return new RequestTooLargeError(
      `Serving "${this.options.name}" has room in its queue for ${what}; give fewer at a time, ` +
        `or raise ${option}`,
    );
  }

  private overloaded(why: string, excess: number, request: QueuedRequest, work: PoolLoad): Error {
    const retryAfter = this.secondsFor(excess, request, work);
    return withoutStack(
      () => new OverloadedError(`Serving "${this.options.name}" ${why}`, { retryAfter }),
    );
  }

  /**
   * Refuses no request while too little is known, nor while a partition is idle: the run of that
   * request may show that batch times have changed.
   */
  private checkDeadline(request: QueuedRequest, now: number, work: PoolLoad): void {
    const { deadline, lane, size } = request;
    if (deadline <= now) {
      const late = Math.ceil(now - deadline);
      const message =
        `The deadline of the call to serving "${this.options.name}" had passed ` +
        `${late} ms before it came; give it more time`;
      throw withoutStack(() => new DeadlineExceededError(message));
    }
    if (deadline === Infinity || (work.idle > 0 && this.rows === 0)) {
      return;
    }
    const batchSize = this.sizeOf(lane.limits);
    const queue = this.timeOfQueue();
    const rowsAhead = this.rowsAhead(request);
    const own = this.timeOf(lane.limits, Math.min(rowsAhead + size, batchSize));
    if (queue === undefined || own === undefined || work.partitions === 0) {
      return;
    }
    const ahead = this.rows === 0 ? 0 : (queue * rowsAhead) / this.rows;
    const batches = Math.ceil(Math.ceil(size / batchSize) / work.partitions);
    const needed =
      (work.runningUntil(now) + ahead) / work.partitions +
      own * (batches + (rowsAhead < batchSize ? TIME_TO_SPARE - 1 : BATCHES_TO_SPARE));
    const left = deadline - now;
    if (needed > left) {
      const why =
        `would need about ${Math.ceil(needed)} ms to answer and the call has ` +
        `${Math.floor(left)} ms`;
      const advice = 'call again later, or with a longer timeout';
      const message = `Serving "${this.options.name}" ${why}; ${advice}`;
      const retryAfter = Math.max(1, Math.ceil((needed - left) / 1000));
      throw withoutStack(() => new DeadlineTooShortError(message, { retryAfter }));
    }
  }

  /** The rows that would run before the rows of the request. */
  protected rowsAhead({ priority, tenant, size }: QueuedRequest): number {
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

  /** Expected milliseconds in which one partition would run the whole queue. */
  private timeOfQueue(): number | undefined {
    let time = 0;
    for (const [limits, { model, rows }] of this.known) {
      const batchSize = this.sizeOf(limits);
      const full = rows > 0 ? model.predict(batchSize) : 0;
      if (full === undefined) {
        return undefined;
      }
      time += (full * rows) / batchSize;
    }
    return time;
  }

  /** Whole seconds in which this many rows will have run; undefined until a batch has run. */
  private secondsFor(
    rows: number,
    { lane }: QueuedRequest,
    { partitions }: PoolLoad,
  ): number | undefined {
    const batchSize = this.sizeOf(lane.limits);
    const full = this.knownOf(lane.limits).model.estimate(batchSize);
    return full === undefined
      ? undefined
      : Math.max(1, Math.ceil((full * rows) / batchSize / Math.max(1, partitions) / 1000));
  }

  protected knownOf(limits: Limits): LaneModel {
    if (this.lastKnown?.limits !== limits) {
      this.lastKnown = this.known.get(limits) ?? { limits, model: new BatchTimeModel(), rows: 0 };
      this.known.set(limits, this.lastKnown);
    }
    return this.lastKnown;
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

/**
 * The largest number of rows of one call in a queue: half of it for calls that leave the other half
 * to others.
 */
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
