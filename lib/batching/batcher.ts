import { AsyncResource } from 'node:async_hooks';
import { Subject } from 'rxjs';
import { ServingClosedError } from '../errors.js';
import { Admission, type AdmissionOptions } from './admission.js';
import type { RunOrder } from './backlog.js';
import { type Load, Pool, type Slot } from './pool.js';
import { type Lane, type Part, partsOf, type Request, type Row, sizeOf } from './request.js';
import { type CloseReason, WaitingLine, type Window } from './waiting-line.js';
import { type ClosedWindow, windowsBy } from './windows-by.js';

/** How one batch came about. */
export interface BatchRecord<R extends Request> {
  readonly id: number;
  readonly parts: readonly Part<R>[];
  readonly rows: number;
  readonly partition: number;
  readonly batchSize: number;
  readonly reason: CloseReason | 'inline';
  /** Milliseconds from the arrival of its oldest row until it ran. */
  readonly wait: number;
  /** The rows that still wait, those of other batches. */
  readonly queued: number;
}

/** Rows that are to run again, by themselves. */
export interface Retry<R extends Request> {
  readonly parts: readonly Part<R>[];
  /** Handed on to the dispatch of the new batch. */
  readonly history?: unknown;
}

/** How one batch went. */
export interface BatchOutcome<R extends Request> {
  /** Why it failed, if it did. */
  readonly error?: unknown;
  /** The rows that were added to fill it up. */
  readonly padding?: number;
  /** How often it yielded, where it was run by a generator. */
  readonly steps?: number;
  /** Batches of those of its rows that are to run again. */
  readonly retries?: readonly Retry<R>[];
}

/** Hears of every batch when a partition gets it and when it has ended. */
export interface BatchObserver<R extends Request> {
  batchStarted(record: BatchRecord<R>): void;
  /** `runTime` is in milliseconds, the way to the partition and back included. */
  batchEnded(record: BatchRecord<R>, runTime: number, outcome: BatchOutcome<R>): void;
}

export interface BatcherOptions<R extends Request> extends AdmissionOptions {
  readonly order: RunOrder;
  /** A number for one more batch. */
  readonly nextBatch: () => number;
  readonly slots: readonly Slot[];
  readonly observer: BatchObserver<R>;
  /** Runs the rows and settles their requests, but for those that are to run again; never rejects. */
  readonly dispatch: (window: Window<R>, partition: number) => Promise<BatchOutcome<R>>;
}

/** So many times longer than expected may a batch take without its rows being late. */
const TIME_TO_SPARE = 1.5;

/** A batch is of several callers, and runs in the async context of none of them. */
const outside = new AsyncResource('nestjs-serving');

/**
 * Rows in, batches out: the only place that knows time and concurrency.
 *
 * A row that is admitted joins the rows of its lane that are ready, where these have room, or else its open window (`windowsBy`), which when
 * it closes gives its rows their place in the line. Nothing here calls out while a row is pushed: batches leave at the end of the event loop's
 * turn, so rows of one turn share a batch, and whoever pushes from a reply or a batch function can lose nothing.
 */
export class Batcher<R extends Request> {
  private readonly rows$ = new Subject<Row<R>>();
  private readonly flush$ = new Subject<void>();
  private readonly admission: Admission;
  private readonly line: WaitingLine<R>;
  private readonly pool: Pool;
  private readonly drained: Promise<void>;
  private finish!: () => void;
  private turnEnds = false;
  private turnTime: number | undefined;
  private draining = false;
  private closed = false;
  private abandoned: Error | undefined;
  /** A window has just closed in the middle of a request that must run whole. */
  private cutOff = false;

  constructor(private readonly options: BatcherOptions<R>) {
    const { slots, order } = options;
    this.admission = new Admission(options);
    this.line = new WaitingLine(order);
    this.pool = new Pool(slots);
    this.drained = new Promise((resolve) => (this.finish = resolve));
    this.rows$
      .pipe(
        windowsBy({
          lane: ({ request }) => request.lane,
          size: ({ limits }) => limits.batchSize,
          timeout: ({ limits }) => (this.draining ? 0 : limits.batchTimeout),
          flush$: this.flush$,
        }),
      )
      .subscribe((window) => {
        this.line.join(this.whole(window), this.now());
        this.runAtEndOfTurn();
      });
    slots.forEach((slot) => slot.onChange?.(() => this.runAtEndOfTurn()));
  }

  /** The rows that no partition has taken yet. */
  get depth(): number {
    return this.admission.depth;
  }

  /**
   * Queues all rows of the request, or throws and queues none.
   *
   * @throws ServingClosedError, and what {@link Admission.enter} throws
   */
  submit(request: R): void {
    const now = this.now();
    if (this.closed) {
      throw new ServingClosedError(`Serving "${this.options.name}" is closed and takes no more calls`);
    }
    this.admission.enter(request, now, this.pool);
    const { lane, size } = request;
    request.waiting = size;
    request.arrivedAt = now;
    this.sealFor(request);
    for (let offset = 0; offset < size;) {
      const count = Math.min(this.line.roomIn(lane), size - offset);
      if (count > 0) {
        this.line.grow({ request, offset, count }, now);
        offset += count;
      } else {
        this.line.open(lane);
        this.rows$.next({ request, index: offset++ });
      }
      if (this.cutOff) {
        this.cutOff = false;
        offset = 0;
        this.sealFor(request);
      }
    }
    this.runAtEndOfTurn();
  }

  /** Still takes rows, but no window waits for more of them from now on. */
  drain(): void {
    this.draining = true;
    this.flush$.next();
  }

  /** Takes no more rows and closes every window; resolves when all batches have run. */
  close(): Promise<void> {
    this.draining = true;
    this.closed = true;
    this.rows$.complete();
    this.runAtEndOfTurn();
    return this.drained;
  }

  /** Gives up the rows of a request that is over: their room in the queue is free. */
  leave(request: R): void {
    this.admission.leave(request, request.waiting);
    request.waiting = 0;
    this.line.leave(request);
    this.runAtEndOfTurn();
  }

  /** Fails every row that no partition has taken yet, and from now on those that would run again. */
  abandon(error: Error): void {
    this.abandoned = error;
    this.giveUp(error);
  }

  private giveUp(error: Error): void {
    for (const request of this.line.clear()) {
      this.leave(request);
      request.fail(error);
    }
  }

  /** Keeps a request that must run whole out of room that has it only in part. */
  private sealFor({ lane, size, whole }: R): void {
    if (whole && this.line.roomIn(lane) < size) {
      this.line.seal(lane);
    }
  }

  /** The closed window with its reason, without the first rows of a request that does not fit into it as a whole. */
  private whole(window: ClosedWindow<Row<R>, Lane>): Window<R> {
    const { lane, rows, size } = window;
    const { request, index } = rows.at(-1)!;
    if (request.whole && rows.length >= size && index + 1 < request.size) {
      this.cutOff = true;
      rows.length -= index + 1;
      return { lane, parts: partsOf(rows), size, reason: 'flush' };
    }
    return { lane, parts: partsOf(rows), size, reason: this.reasonOf(window) };
  }

  private reasonOf({ rows, size, timeout }: ClosedWindow<unknown, Lane>): CloseReason {
    if (rows.length >= size) {
      return 'full';
    }
    if (this.draining) {
      return 'drain';
    }
    return timeout === 0 ? 'idle' : 'timeout';
  }

  /** The time; read once while a turn of the event loop lasts, since that costs as much as queueing a row. */
  private now(): number {
    return this.turnEnds ? (this.turnTime ??= performance.now()) : performance.now();
  }

  private runAtEndOfTurn(): void {
    if (!this.turnEnds && (this.closed || !this.line.isEmpty)) {
      this.turnEnds = true;
      setImmediate(() => {
        this.turnEnds = false;
        this.turnTime = undefined;
        outside.runInAsyncScope(() => this.run());
      });
    }
  }

  private run(): void {
    const hopeless = this.abandoned ?? this.pool.lost;
    if (hopeless) {
      this.giveUp(hopeless);
    }
    const now = performance.now();
    for (let next = this.line.next(now); next; next = this.line.next(now)) {
      const load = this.pool.next(next);
      if (!load) {
        break;
      }
      const window = this.line.take(
        now,
        ({ limits }, rows) => this.pool.endOf(load, now) + (this.admission.timeOf(limits, rows) ?? 0) * TIME_TO_SPARE,
      );
      if (window.parts.length > 0) {
        void this.execute(window, load);
      }
    }
    if (this.closed && this.line.isEmpty && this.pool.isQuiet) {
      this.finish();
    }
  }

  private async execute(window: Window<R>, load: Load): Promise<void> {
    const { dispatch, observer, nextBatch } = this.options;
    const { parts, lane, size: batchSize, reason } = window;
    const { partition } = load;
    const rows = sizeOf(parts);
    const handedAt = performance.now();
    let arrivedAt = Infinity;
    for (const { request, count } of parts) {
      arrivedAt = Math.min(arrivedAt, request.arrivedAt);
      request.waiting -= count;
      this.admission.leave(request, count);
    }
    this.pool.start(load, this.admission.timeOf(lane.limits, rows) ?? 0, handedAt);
    const record = { id: nextBatch(), parts, rows, partition, batchSize, reason, wait: handedAt - arrivedAt, queued: this.depth };
    observer.batchStarted(record);
    const outcome = await dispatch(window, partition);
    const endedAt = performance.now();
    const startedAt = this.pool.end(load, endedAt);
    if (outcome.error === undefined) {
      this.admission.learn(lane.limits, rows + (outcome.padding ?? 0), endedAt - startedAt);
    }
    outcome.retries?.forEach((retry) => this.runAgain(retry, batchSize));
    observer.batchEnded({ ...record, wait: startedAt - arrivedAt }, endedAt - startedAt, outcome);
    this.runAtEndOfTurn();
  }

  private runAgain({ parts, history }: Retry<R>, size: number): void {
    const live = parts.filter(({ request }) => !request.isOver);
    for (const { request, count } of live) {
      request.waiting += count;
      this.admission.count(request, count);
    }
    if (live.length > 0) {
      this.line.again(live, history, size);
    }
  }
}
