import { AsyncResource } from 'node:async_hooks';
import { Subject } from 'rxjs';
import { OverloadedError, ServingClosedError } from '../errors.js';
import { type CloseReason, WaitingLine, type Window } from './waiting-line.js';
import { type ClosedWindow, windowsBy } from './windows-by.js';

/** Where rows wait for one another; compared by identity. */
export interface Lane {
  /** What a window has of them when it opens, it keeps. */
  readonly limits: { readonly batchSize: number; readonly batchTimeout: number };
}

/** One call: some rows that wait for a batch, and somebody who waits for them. */
export interface Request {
  /** Rows batch only with rows of the same lane. */
  readonly lane: Lane;
  /** The number of its rows. */
  readonly size: number;
  /** All rows must run in one batch; there are no more of them than fit into one. */
  readonly whole: boolean;
  /** Nobody waits for it any more: rows that have not run need not run. */
  readonly isOver: boolean;
  /** When it was admitted, in milliseconds of `performance.now()`; the batcher notes it. */
  arrivedAt: number;
  /** The rows that no partition has got yet; the batcher counts them. */
  waiting: number;
  fail(error: unknown): void;
}

/** One entry of a batch: the row at `index` of its request. */
export interface Row<R extends Request> {
  readonly request: R;
  readonly index: number;
}

/** What the batcher must know of a partition. */
export interface Slot {
  /** How many full batches it takes ahead while another one runs. */
  readonly prefetch: number;
  /** Why it takes no batch now; it soon comes back by itself, and rows wait for it. */
  readonly away?: Error | undefined;
  /** Why it can run nothing; it may come back, but rows do not wait for that. */
  readonly lost?: Error | undefined;
  /** Calls the listener whenever either has changed. */
  onChange?(listener: () => void): void;
}

/** How one batch came about. */
export interface BatchRecord<R extends Request> {
  readonly id: number;
  readonly rows: readonly Row<R>[];
  readonly partition: number;
  readonly batchSize: number;
  readonly reason: CloseReason | 'inline';
  /** Milliseconds from the arrival of its oldest row until it ran. */
  readonly wait: number;
  /** The rows that still wait, those of other batches. */
  readonly queued: number;
}

/** How one batch went. */
export interface BatchOutcome {
  /** Why it failed, if it did. */
  readonly error?: unknown;
  /** The rows that were added to fill it up. */
  readonly padding?: number;
  /** How often it yielded, where it was run by a generator. */
  readonly steps?: number;
}

/** Hears of every batch when a partition gets it and when it has ended. */
export interface BatchObserver<R extends Request> {
  batchStarted(record: BatchRecord<R>): void;
  /** `runTime` is in milliseconds, the way to the partition and back included. */
  batchEnded(record: BatchRecord<R>, runTime: number, outcome: BatchOutcome): void;
}

export interface BatcherOptions<R extends Request> {
  readonly name: string;
  readonly maxQueue: number;
  /** A number for one more batch. */
  readonly nextBatch: () => number;
  readonly slots: readonly Slot[];
  readonly observer: BatchObserver<R>;
  /** Runs the rows and settles their requests; never rejects. */
  readonly dispatch: (rows: readonly Row<R>[], partition: number) => Promise<BatchOutcome>;
}

/** A batch is of several callers, and runs in the async context of none of them. */
const outside = new AsyncResource('nestjs-serving');

interface Load {
  readonly slot: Slot;
  /** Batches handed to it and not finished. */
  batches: number;
  finishedAt: number;
}

/**
 * Rows in, batches out: the only place that knows time and concurrency.
 *
 * A row joins the waiting window of its lane, or else its open one (`windowsBy`); a closed window stands in line until a
 * partition takes it. Nothing here calls out while a row is pushed: batches leave at the end of the event loop's turn, so
 * rows of one turn share a batch, and whoever pushes from a reply or a batch function can lose nothing.
 */
export class Batcher<R extends Request> {
  private readonly rows$ = new Subject<Row<R>>();
  private readonly flush$ = new Subject<void>();
  private readonly line = new WaitingLine<Row<R>>();
  private readonly loads: Load[];
  private readonly idle: Load[];
  private readonly drained: Promise<void>;
  private finish!: () => void;
  private queued = 0;
  private turnEnds = false;
  private turnTime: number | undefined;
  private draining = false;
  private closed = false;
  /** The whole request of which a window has just taken a part. */
  private cutOff: R | undefined;

  constructor(private readonly options: BatcherOptions<R>) {
    const { slots } = options;
    this.loads = slots.map((slot) => ({ slot, batches: 0, finishedAt: 0 }));
    this.idle = [...this.loads];
    this.drained = new Promise((resolve) => (this.finish = resolve));
    slots.forEach((slot) => slot.onChange?.(() => this.runAtEndOfTurn()));
    this.rows$
      .pipe(
        windowsBy({
          lane: (row) => row.request.lane,
          size: ({ limits }) => limits.batchSize,
          timeout: ({ limits }) => (this.draining ? 0 : limits.batchTimeout),
          flush$: this.flush$,
        }),
      )
      .subscribe((window) => {
        this.line.join(this.whole(window));
        this.runAtEndOfTurn();
      });
  }

  /** The rows that no partition has taken yet. */
  get depth(): number {
    return this.queued;
  }

  /** Queues all rows of the request, or throws and queues none. */
  submit(request: R): void {
    const { name, maxQueue } = this.options;
    const rows = request.size;
    if (this.closed) {
      throw new ServingClosedError(`Serving "${name}" is closed and takes no more calls`);
    }
    if (this.queued + rows > maxQueue) {
      throw new OverloadedError(
        `Serving "${name}" has ${this.queued} of at most ${maxQueue} rows in its queue and no room for ${rows} more; ` +
          (rows > maxQueue ? 'give fewer at a time, or raise maxQueue' : 'call again later, or raise maxQueue'),
      );
    }
    this.queued += rows;
    request.waiting = rows;
    request.arrivedAt = this.now();
    if (request.whole && this.line.roomIn(request.lane) < rows) {
      this.line.seal(request.lane);
    }
    for (let index = 0; index < rows; index++) {
      const row = { request, index };
      if (!this.line.grow(request.lane, row)) {
        this.rows$.next(row);
      }
      if (this.cutOff) {
        this.cutOff = undefined;
        index = -1;
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

  /** Gives up the rows of a request that is over: their room in the queue and in their windows is free. */
  leave(request: R): void {
    this.queued -= request.waiting;
    request.waiting = 0;
    this.runAtEndOfTurn();
  }

  /** Fails every row that no partition has taken yet. */
  abandon(error: Error): void {
    for (const { request } of this.line.clear()) {
      this.leave(request);
      request.fail(error);
    }
  }

  /** The closed window with its reason, without the first rows of a request that does not fit into it as a whole. */
  private whole(window: ClosedWindow<Row<R>, Lane>): Window<Row<R>> {
    const { lane, rows, size } = window;
    const { request, index } = rows.at(-1)!;
    if (request.whole && rows.length >= size && index + 1 < request.size) {
      this.cutOff = request;
      rows.length -= index + 1;
      return { lane, rows, size, reason: 'flush' };
    }
    return { lane, rows, size, reason: this.reasonOf(window) };
  }

  private reasonOf({ rows, size, timeout }: ClosedWindow<Row<R>, Lane>): CloseReason {
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
    for (let window = this.line.head; window; window = this.line.head) {
      this.dropLeft(window);
      const load = window.rows.length === 0 ? undefined : this.loadFor(window);
      if (window.rows.length > 0 && !load) {
        break;
      }
      this.line.take();
      if (load) {
        void this.execute(window, load);
      }
    }
    const lost = this.loads.every(({ slot }) => slot.lost) && this.loads[0]?.slot.lost;
    if (lost) {
      this.abandon(lost);
    }
    if (this.closed && this.line.isEmpty && this.loads.every(({ batches }) => batches === 0)) {
      this.finish();
    }
  }

  /** The partition that has been idle longest; for a full window also a busy one that takes it ahead. */
  private loadFor(window: Window<Row<R>>): Load | undefined {
    const idle = this.idle.findIndex(({ slot }) => isUp(slot));
    if (idle >= 0) {
      return this.idle.splice(idle, 1)[0];
    }
    if (window.rows.length < window.size) {
      return undefined;
    }
    return this.loads.find(({ slot, batches }) => isUp(slot) && batches > 0 && batches <= slot.prefetch);
  }

  /** Takes the rows of those who have left out of the head, and lets others of its lane have their places. */
  private dropLeft(head: Window<Row<R>>): void {
    const { rows, size, reason } = head;
    if (rows.some(({ request }) => request.isOver)) {
      rows.splice(0, rows.length, ...rows.filter(({ request }) => !request.isOver));
    }
    if (reason === 'full' && rows.length < size) {
      this.line.refillHead(moveUp);
    }
  }

  private async execute({ rows, size, reason }: Window<Row<R>>, load: Load): Promise<void> {
    const { dispatch, observer, nextBatch } = this.options;
    const partition = this.loads.indexOf(load);
    const handedAt = performance.now();
    const { arrivedAt } = rows[0]!.request;
    this.queued -= rows.length;
    for (const { request } of rows) {
      request.waiting--;
    }
    const { queued } = this;
    const record = { id: nextBatch(), rows, partition, batchSize: size, reason, wait: handedAt - arrivedAt, queued };
    load.batches++;
    observer.batchStarted(record);
    const outcome = await dispatch(rows, partition);
    const startedAt = Math.max(handedAt, load.finishedAt);
    load.finishedAt = performance.now();
    load.batches--;
    if (load.batches === 0) {
      this.idle.push(load);
    }
    observer.batchEnded({ ...record, wait: startedAt - arrivedAt }, load.finishedAt - startedAt, outcome);
    this.runAtEndOfTurn();
  }
}

function isUp({ away, lost }: Slot): boolean {
  return !away && !lost;
}

/** The next row, or all of a request that may not be split; of one who has left, nothing. */
function moveUp<R extends Request>(rows: Row<R>[], room: number): Row<R>[] | undefined {
  const { request } = rows[0]!;
  if (request.isOver) {
    rows.shift();
    return [];
  }
  const count = request.whole ? request.size : 1;
  return count > room ? undefined : rows.splice(0, count);
}
