import { countOfRows } from '../format.js';
import { audit, catchError, lastValueFrom, merge, mergeMap, Observable, Subject, tap } from 'rxjs';
import { closedError, messageOf, ServingUnavailableError } from '../errors.js';
import {
  Admission,
  type AdmissionOptions,
  type LatencyTarget,
  QueueRoom,
  type RoomOptions,
} from './admission.js';
import { type BatchCost, costOf, Fill, loadOf, UNLIMITED } from './fill.js';
import type { QueueOrder } from './row-queue.js';
import { Pool, ReturningRows, type RunningBatch, type Target, type TargetLoad } from './pool.js';
import {
  isWanted,
  type Lane,
  type Limits,
  type Part,
  type QueuedRequest,
  sizeOf,
} from './queued-request.js';
import { OpenWindow, windowsBy } from './windows.js';
import { outsideCallContext } from '../context/call-context.js';
import type { CallingBatch } from '../context/call-cycles.js';
import { type CloseReason, ReadyQueue, type Window } from './ready-queue.js';

export interface BatchRecord<R extends QueuedRequest> {
  readonly id: number;
  readonly parts: readonly Part<R>[];
  readonly rows: number;
  readonly partition: number;
  readonly batchSize: number;
  readonly reason: CloseReason;
  /** Milliseconds from its oldest row's arrival to its start. */
  readonly wait: number;
  /** Expected run time in milliseconds; undefined until enough batches have run. */
  readonly expected: number | undefined;
  /** Undefined without a budget. */
  readonly cost: BatchCost | undefined;
  /** Rows still queued at its start. */
  readonly queued: number;
}

/** Rows that run again in a batch of their own. */
export interface Retry<R extends QueuedRequest> {
  readonly parts: readonly Part<R>[];
  /** Passed to the new batch's dispatch. */
  readonly retryState?: unknown;
}

export interface BatchOutcome<R extends QueuedRequest> {
  readonly error?: unknown;
  /** Revoked before it began; its rows run again. */
  readonly revoked?: true | undefined;
  readonly padding?: number;
  /** If the batch function is a generator. */
  readonly steps?: number | undefined;
  readonly retries?: readonly Retry<R>[] | undefined;
  /** Answers the requests. Called once the batch is counted, so callers find it counted. */
  handOut?(): void;
}

export interface BatchRuns<R extends QueuedRequest> {
  nextBatch(): number;
  /** Called before the batch runs. */
  batchStarted(record: BatchRecord<R>): void;
  /** Never rejects. */
  dispatch(window: Window<R>, partition: number): Promise<BatchOutcome<R>>;
  /** `runTime` is in milliseconds and includes the transfer to the partition and back. */
  batchEnded(record: BatchRecord<R>, runTime: number, outcome: BatchOutcome<R>): void;
  /** The queue has failed, by a fault of this package or of a partition, and takes no more rows. */
  queueFailed?(error: Error): void;
  /** An error of its own for each call: callers mark what they get. */
  named?(error: Error): Error;
}

export interface BatcherOptions<R extends QueuedRequest> extends AdmissionOptions, RoomOptions {
  readonly order: QueueOrder;
  readonly targets: readonly Target[];
  /**
   * True if a lane's rows run only on the target `lane.partition`.
   *
   * @default false
   */
  readonly isDivided?: boolean | undefined;
  readonly runs: BatchRuns<R>;
}

interface Section<R extends QueuedRequest> {
  readonly admission: Admission;
  readonly ready: ReadyQueue<R>;
  readonly pool: Pool;
  readonly returning: ReturningRows | undefined;
}

/** A batch that a partition has taken from the queue. It runs when the turn ends. */
interface Assignment<R extends QueuedRequest> {
  readonly section: Section<R>;
  readonly window: Window<R>;
  readonly load: TargetLoad;
  readonly handed: RunningBatch;
}

/** A batch taken before the turn's end, which further rows may join until then. */
interface OpenBatch<R extends QueuedRequest> extends Assignment<R> {
  readonly fill: Fill;
  readonly joined: Part<R>[];
}

/**
 * Rows in, batches out. One pipe leads from row to batch, and the constructor shows it:
 *
 *     rows -> windows by lane, size and time -> ready queue -> partitions -> dispatch
 *
 * A submitted row joins its lane's ready rows if they have room, otherwise its lane's open window.
 * A closing window's rows become ready; without a timeout, rows are ready immediately. Batches
 * start when the event loop's turn ends and a partition is free. So one turn's rows share a batch,
 * a partial batch grows while all partitions are busy, and a batch function may call `submit`.
 *
 * Rows that a free partition takes don't count against the queue's limits. So when the queue has no
 * room for a request, free partitions take their batches immediately.
 */
export class Batcher<R extends QueuedRequest> {
  /** A row's lane, when the row takes a new place in an open window. */
  private readonly rows$ = new Subject<Lane>();
  /** Emits when a batch may be able to start, except when a window closes. */
  private readonly changes$ = new Subject<void>();
  private readonly drained: Promise<unknown>;
  protected readonly windows = new Map<Lane, OpenWindow<R>>();
  private readonly room: QueueRoom;
  /** One for all partitions, or one for each. */
  private readonly sections: readonly Section<R>[];
  /** Running batches' partitions. */
  private readonly executing = new Map<Window<R>, number>();
  /** Taken in this turn, when the queue had no room. */
  private taken: OpenBatch<R>[] = [];
  private turnEnds = false;
  private turnTime: number | undefined;
  private draining = false;
  private closed = false;
  private abandoned: Error | undefined;
  private fault: ServingUnavailableError | undefined;

  constructor(private readonly options: BatcherOptions<R>) {
    const { targets, isDivided, order, budget } = options;
    const costed = budget && budget.most < Infinity ? budget : undefined;
    const room = new QueueRoom(options);
    const sectionOf = (some: readonly Target[], first: number): Section<R> => {
      const admission = new Admission({ ...options, budget: costed }, room);
      const ready = new ReadyQueue<R>(order, admission, budget);
      const returning =
        some.length === 1 && some[0]!.capacity === undefined
          ? new ReturningRows(() => this.changed())
          : undefined;
      return { admission, ready, pool: new Pool(some, first), returning };
    };
    this.room = room;
    this.sections = isDivided
      ? targets.map((target, index) => sectionOf([target], index))
      : [sectionOf(targets, 0)];
    targets.forEach((target) => target.onChange?.(() => this.changed()));

    const closedWindows$ = this.rows$.pipe(
      windowsBy({
        lane: (lane) => lane,
        size: (lane) => this.windows.get(lane)!.size,
        timeout: (lane) => this.windows.get(lane)!.timeout,
        closed$: (lane) => this.windows.get(lane)!.close$,
      }),
      tap(({ lane }) => this.moveToReady(this.windows.get(lane)!)),
    );
    const batches$ = merge(closedWindows$, this.changes$).pipe(
      audit(() => endOfTurn$),
      mergeMap(() => this.nextBatches()),
      mergeMap((batch) => this.run(batch)),
      // The pipe goes on, to see the running batches' ends.
      catchError((cause, batches) => {
        this.fail(cause);
        return batches;
      }),
    );
    this.drained = lastValueFrom(batches$, { defaultValue: undefined });
  }

  /** Rows in the queue, and places of rows that are being prepared. */
  get depth(): number {
    return this.room.rows;
  }

  /**
   * Queues all the request's rows or none.
   *
   * @throws ServingClosedError when closed, and what {@link Admission.enter} throws
   */
  submit(request: R): void {
    const now = this.now();
    this.refuseOnceClosed();
    const { size, lane } = request;
    const { admission, ready, pool, returning } = this.sectionOf(lane);
    // Also rows that are refused: those admitted come at a batch's end, when there is room again.
    if (!lane.isAlone) {
      returning?.arrive(request, now);
    }
    if (this.room.lackFor(request)) {
      this.takeBatches(now);
    }
    request.queue = this;
    request.arrivedAt = now;
    if (request.deadline < Infinity && admission.ignoresDeadlines) {
      admission.heedDeadlines(this.requestsOf(lane));
    }
    if (this.taken.length > 0 && this.join(request, now)) {
      return;
    }
    admission.enter(request, now, pool);
    if (request.whole) {
      this.makeRoomFor(request);
    }
    for (let offset = 0; offset < size;) {
      const count = ready.roomFor(request, offset);
      if (count > 0) {
        ready.extend({ request, offset, count }, now);
      }
      offset += count > 0 ? count : this.addToWindow(request, offset);
    }
    this.changed();
  }

  /**
   * Keeps a place in the queue for a call whose rows are being prepared. The result frees it, once.
   *
   * @throws ServingClosedError when closed
   * @throws OverloadedError if the queue has no room for a row
   */
  reserve({ priority, tenant }: Pick<QueuedRequest, 'priority' | 'tenant'>): () => void {
    this.refuseOnceClosed();
    const { room } = this;
    const [{ admission, pool }] = this.sections as [Section<R>];
    const place = { size: 1, cost: 0, priority, tenant };
    if (room.lackForPlace(place)) {
      this.takeBatches(this.now());
      admission.checkPlace(place, pool);
    }
    room.countRows(tenant, 1);
    let isKept = true;
    return () => {
      if (isKept) {
        isKept = false;
        room.countRows(tenant, -1);
      }
    };
  }

  /** While paused, rows wait as for a busy partition. */
  pause(isPaused: boolean): void {
    this.sections.forEach(({ pool }) => (pool.isPaused = isPaused));
    this.changed();
  }

  /** Still takes rows, but no window waits for more. */
  drain(): void {
    this.draining = true;
    this.closeWindows();
  }

  /** Takes no more rows and closes every window; resolves when all batches have run. */
  async close(): Promise<void> {
    this.draining = true;
    this.closed = true;
    this.sections.forEach(({ returning }) => returning?.close());
    this.rows$.complete();
    this.changed();
    await this.drained;
  }

  leave(request: R): void {
    const { lane, waiting, open } = request;
    const { admission, ready } = this.sectionOf(lane);
    admission.leave(request, waiting);
    if (open) {
      this.windows.get(lane)!.leave(request);
    }
    ready.leave(request);
    this.changed();
  }

  /** Takes no more rows; fails every queued row, and every row that would run again. */
  abandon(error: Error): void {
    this.abandoned = error;
    void this.close();
    this.sections.forEach((section) => this.expire(section, error));
  }

  /**
   * Like {@link abandon}, but also fails the running batches. True if there was anything to fail.
   */
  end(error: Error): boolean {
    const hadCalls = this.depth > 0 || this.executing.size > 0;
    this.abandon(error);
    [...this.executing.keys()].forEach(({ parts }) =>
      parts.forEach(({ request }) => request.fail(error)),
    );
    return hadCalls;
  }

  /** A row that is batched continuously may join any partition's rows, after their step. */
  waitsOf(call: R): (CallingBatch | undefined)[][] {
    const { lane, runs = [] } = call;
    const section = this.sectionOf(lane);
    const running = [...this.executing.keys()].filter(
      (window) => this.sectionOf(window.lane) === section,
    );
    const own = running.filter((window) => runs.includes(window));
    const before = lane.replies ? running.filter((window) => window.lane === lane) : [];
    const isQueued = call.waiting > 0 || own.length === 0;
    const callers = running.map(({ caller }) => caller);
    const isJoin = this.options.targets[0]?.capacity !== undefined;
    const blocking = isJoin ? callers.map((caller) => [caller]) : [callers];
    const isBlocked = isQueued && (isJoin || section.pool.isFull);
    return [...[...own, ...before].map(({ caller }) => [caller]), ...(isBlocked ? blocking : [])];
  }

  targetOf(limits: Limits): LatencyTarget | undefined {
    return this.sections[0]!.admission.targetOf(limits);
  }

  /** Learns from a batch that ran outside the queue. */
  learn(request: Pick<QueuedRequest, 'lane' | 'size' | 'rowCosts'>, milliseconds: number): void {
    const { lane, size } = request;
    const { budget } = this.options;
    const cost = budget && costOf([{ request, offset: 0, count: size }], budget);
    this.sections.forEach(({ admission }) =>
      admission.learn(lane.limits, cost?.padded ?? size, milliseconds),
    );
  }

  unfinished(): readonly string[] {
    return [...this.executing].map(
      ([{ parts }, partition]) =>
        `a batch of ${countOfRows(sizeOf(parts))} on partition ${partition}`,
    );
  }

  private refuseOnceClosed(): void {
    if (this.closed) {
      throw this.fault ?? closedError(this.options.name);
    }
  }

  /** Answers every waiting row: nothing else would end its wait. */
  private fail(cause: unknown): void {
    const error = this.faultOf(cause);
    const windows = [...this.windows.values()];
    this.windows.clear();
    this.abandon(error);
    for (const { request } of windows.flatMap((window) => window.takeParts())) {
      this.leave(request);
      request.fail(error);
    }
    // The pipe must listen again before it can see a change.
    queueMicrotask(() => {
      this.turnEnds = false;
      this.changed();
    });
  }

  private faultOf(cause: unknown): ServingUnavailableError {
    if (!this.fault) {
      const { name, runs } = this.options;
      const message =
        `Serving "${name}" takes no more calls, since its queue has failed: ${messageOf(cause)}; ` +
        'restart the application';
      this.fault = new ServingUnavailableError(message, { cause });
      runs.queueFailed?.(this.fault);
    }
    return this.fault;
  }

  private sectionOf({ partition = 0 }: Lane): Section<R> {
    return this.sections[partition]!;
  }

  /** Queued requests of the lane's section, some twice. */
  private *requestsOf(lane: Lane): Generator<R> {
    const section = this.sectionOf(lane);
    yield* section.ready.requests();
    for (const window of this.windows.values()) {
      if (this.sectionOf(window.lane) === section) {
        yield* [...window.parts].map(({ request }) => request);
      }
    }
  }

  /** Adds rows from `offset` on to the open window, and returns how many. */
  private addToWindow(request: R, offset: number): number {
    const { lane } = request;
    const { batchTimeout } = lane.limits;
    let window = this.windows.get(lane);
    if (!window && (batchTimeout === 0 || this.draining)) {
      // A window without a timeout would close at its first row.
      const reason = this.reasonAtOnce(lane);
      const size = lane.limits.batchSize;
      const fill = new Fill(this.options.budget ?? UNLIMITED, size);
      const count = fill.fitting(request, offset, request.size - offset);
      const parts = [{ request, offset, count }];
      this.sectionOf(lane).ready.addWindow({ lane, parts, size, reason }, this.now());
      return count;
    }
    window ??= this.open(request);
    if (!window.fits(request, offset)) {
      window.close('cost');
      return this.addToWindow(request, offset);
    }
    const free = window.freeFor(request, offset);
    if (free > 0) {
      window.refill({ request, offset, count: free });
    } else {
      window.add({ request, offset, count: 1 });
      // Closes the window if that was its last place.
      this.rows$.next(lane);
    }
    if (window.isSpent) {
      window.close('cost');
    }
    return Math.max(1, free);
  }

  private open({ lane, whole, size }: R): OpenWindow<R> {
    const { batchSize } = lane.limits;
    const room = whole ? Math.max(batchSize, size) : batchSize;
    const window = new OpenWindow<R>(lane, room, this.options.budget);
    this.windows.set(lane, window);
    this.sectionOf(lane).ready.openWindow(lane);
    return window;
  }

  private moveToReady(window: OpenWindow<R>): void {
    const { lane, size } = window;
    this.windows.delete(lane);
    const parts = window.takeParts();
    const reason = this.reasonOf(window);
    this.sectionOf(lane).ready.addWindow({ lane, parts, size, reason }, this.now());
  }

  private closeWindows(): void {
    [...this.windows.values()].forEach((window) => window.close());
  }

  private expire({ ready }: Section<R>, error: Error): void {
    for (const request of ready.clear()) {
      this.leave(request);
      request.fail(this.options.runs.named?.(error) ?? error);
    }
  }

  private makeRoomFor(request: R): void {
    const { lane, size } = request;
    const window = this.windows.get(lane);
    if (window && !window.hasRoomFor(request)) {
      window.close('flush');
    }
    const { ready } = this.sectionOf(lane);
    if (ready.roomFor(request, 0) < size) {
      ready.closeWindow(lane);
    }
  }

  private reasonOf({ rows, size, closedBy }: OpenWindow<R>): CloseReason {
    if (rows >= size) {
      return 'full';
    }
    if (this.draining) {
      return 'drain';
    }
    return closedBy ?? 'timeout';
  }

  private reasonFor({ lane: { limits }, size, reason }: Window<R>): CloseReason {
    const isTarget = reason === 'full' && limits.latencyTarget !== undefined;
    return isTarget && size < limits.batchSize ? 'target' : reason;
  }

  private reasonAtOnce({ isAlone, limits }: Lane): CloseReason {
    if (isAlone) {
      return 'inline';
    }
    if (limits.batchSize === 1) {
      return 'full';
    }
    return this.draining ? 'drain' : 'idle';
  }

  /** Read once in a turn: reading the clock costs as much as queueing a row. */
  private now(): number {
    return this.turnEnds ? (this.turnTime ??= performance.now()) : performance.now();
  }

  private changed(): void {
    if (!this.turnEnds && (this.closed || this.taken.length > 0 || this.hasWork)) {
      this.turnEnds = true;
      this.changes$.next();
    }
  }

  /** True if a batch may start, or move to an idle partition. */
  private get hasWork(): boolean {
    for (const { ready, pool } of this.sections) {
      if (!ready.isEmpty || pool.isUneven) {
        return true;
      }
    }
    return false;
  }

  /** Free partitions' batches leave the queue now, so that it has room again. */
  private takeBatches(now: number): void {
    for (const section of this.sections) {
      for (const batch of this.batchesOf(section, now)) {
        const { window } = batch;
        const fill = new Fill(this.options.budget ?? UNLIMITED, window.size).with(window.parts);
        this.taken.push({ ...batch, fill, joined: [] });
      }
    }
    this.changed();
  }

  /** True if a batch that was taken in this turn takes all the request's rows. */
  private join(request: R, now: number): boolean {
    const { lane, size } = request;
    const { admission, ready } = this.sectionOf(lane);
    if (this.windows.has(lane)) {
      return false;
    }
    const load = loadOf(request, 0, size);
    const batch = this.taken.find(
      ({ window, fill }) =>
        window.lane === lane && window.reason !== 'retry' && fill.fits(load) && fill.room >= size,
    );
    const isNext = batch && ready.sizeOf(lane) === 0;
    if (!isNext || !admission.joins(request, now, batch.window.size)) {
      return false;
    }
    batch.fill.add(load);
    batch.joined.push({ request, offset: 0, count: size });
    return true;
  }

  /** Ready batches, each with the partition that is free for it when we take it. */
  private *nextBatches(): Generator<Assignment<R>, void> {
    this.turnEnds = false;
    this.turnTime = undefined;
    const now = performance.now();
    yield* this.takenBatches(now);
    for (const section of this.sections) {
      yield* this.nextBatchesOf(section, now);
    }
    if (this.closed && this.sections.every(({ ready, pool }) => ready.isEmpty && pool.isIdle)) {
      this.changes$.complete();
    }
  }

  /** Batches taken before, without rows whose callers have left since. */
  private *takenBatches(now: number): Generator<Assignment<R>, void> {
    for (const batch of this.taken.splice(0)) {
      const { section, window, load, handed, joined } = batch;
      const all = [...window.parts, ...joined];
      window.parts = all.filter(({ request }) => isWanted(request, now));
      if (window.parts.length > 0) {
        yield batch;
      } else {
        this.executing.delete(window);
        section.pool.end(load, handed, now);
      }
    }
  }

  private *nextBatchesOf(section: Section<R>, now: number): Generator<Assignment<R>, void> {
    const { ready, pool } = section;
    const hopeless = this.abandoned ?? pool.lost;
    if (hopeless) {
      this.expire(section, hopeless);
    }
    yield* this.batchesOf(section, now);
    if (ready.isEmpty) {
      pool.revoke(now);
    }
  }

  private *batchesOf(section: Section<R>, now: number): Generator<Assignment<R>, void> {
    const { admission, ready, pool, returning } = section;
    for (let next = ready.next(now); next; next = ready.next(now)) {
      const load = pool.next(next, now);
      if (!load || (next === 'growing' && returning?.areAwaited)) {
        break;
      }
      const window = ready.take(
        now,
        ({ limits }, rows, cost) =>
          pool.endOf(load, now) + admission.leastTimeOf(limits, rows, cost),
      );
      if (window.parts.length > 0) {
        yield this.assign(section, window, load);
      }
    }
  }

  /** The batch's rows leave the queue. */
  private assign(section: Section<R>, window: Window<R>, load: TargetLoad): Assignment<R> {
    const { budget } = this.options;
    const { admission, pool } = section;
    const { parts, lane } = window;
    for (const { request, count } of parts) {
      admission.leave(request, count);
      request.runs?.push(window);
    }
    const cost = budget && costOf(parts, budget);
    const least = admission.leastTimeOf(lane.limits, sizeOf(parts), cost?.padded);
    const handed = pool.start(load, least, performance.now());
    this.executing.set(window, load.partition);
    return { section, window, load, handed };
  }

  private async run(batch: Assignment<R>): Promise<void> {
    try {
      await this.runBatch(batch);
    } catch (cause) {
      const { section, window, load, handed } = batch;
      if (this.executing.delete(window)) {
        section.pool.end(load, handed, performance.now());
      }
      const error = this.faultOf(cause);
      window.parts.forEach(({ request }) => request.fail(error));
      throw cause;
    }
  }

  private async runBatch({ section, window, load, handed }: Assignment<R>): Promise<void> {
    const { runs, budget } = this.options;
    const { admission, pool } = section;
    const { parts, lane, size: batchSize } = window;
    const { partition, target } = load;
    const isJoin = target.capacity !== undefined;
    const rows = sizeOf(parts);
    const arrivedAt = parts.reduce(
      (first, { request }) => Math.min(first, request.arrivedAt),
      Infinity,
    );
    const cost = budget && costOf(parts, budget);
    const record = {
      id: runs.nextBatch(),
      parts,
      rows,
      partition,
      batchSize,
      reason: isJoin && window.reason === 'full' ? 'join' : this.reasonFor(window),
      wait: handed.handedAt - arrivedAt,
      expected: admission.timeOf(lane.limits, rows, cost?.padded),
      cost,
      queued: this.depth,
    };
    runs.batchStarted(record);
    const outcome = await runs.dispatch(window, partition);
    const endedAt = performance.now();
    this.executing.delete(window);
    if (window.caller && !isJoin) {
      window.caller.hasEnded = true;
    }
    const startedAt = pool.end(load, handed, endedAt);
    // A row that joins others takes as long as it needs, so its time predicts no other's.
    if (outcome.error === undefined && !outcome.revoked && !isJoin) {
      const work = cost?.padded ?? rows + (outcome.padding ?? 0);
      admission.learn(lane.limits, work, endedAt - startedAt);
    }
    outcome.retries?.forEach((retry) => this.runAgain(section, retry, batchSize));
    record.wait = startedAt - arrivedAt;
    runs.batchEnded(record, endedAt - startedAt, outcome);
    section.returning?.end(endedAt);
    if (outcome.error === undefined) {
      this.awaitRows(section, lane, rows, cost);
    }
    outcome.handOut?.();
    this.changed();
  }

  /** Rows of a window with a timeout wait anyway. */
  private awaitRows(
    { admission, ready, pool, returning }: Section<R>,
    lane: Lane,
    rows: number,
    cost: BatchCost | undefined,
  ): void {
    const { batchSize, batchTimeout, latencyTarget } = lane.limits;
    const waiting = ready.sizeOf(lane);
    const mayShare = pool.isIdle && !lane.isAlone && waiting === admission.queued;
    if (mayShare && batchTimeout === 0 && latencyTarget === undefined && !this.draining) {
      const work = cost && cost.padded / rows;
      returning?.waitAfter({
        rows,
        waiting,
        batchSize: work ? Math.min(batchSize, cost.most / work) : batchSize,
        gainOf: (first, others) => admission.gainOf(lane.limits, first, others, work),
      });
    }
  }

  private runAgain(
    { admission, ready }: Section<R>,
    { parts, retryState }: Retry<R>,
    size: number,
  ): void {
    const live = parts.filter(({ request }) => !request.isOver);
    live.forEach(({ request, count }) => admission.enterAgain(request, count));
    if (live.length > 0) {
      ready.retry(live, retryState, size);
    }
  }
}

/** Emits when the event loop's turn ends, outside any caller's async context. */
const endOfTurn$ = new Observable<void>((subscriber) => {
  const immediate = outsideCallContext(() => setImmediate(() => subscriber.next()));
  return () => clearImmediate(immediate);
});
