import { Subject } from 'rxjs';
import { OverloadedError, ServingClosedError } from '../errors.js';
import { type CloseReason, WaitingLine, type Window } from './waiting-line.js';
import { windowsBy } from './windows-by.js';

/** One call: some rows that wait for a batch, and somebody who waits for them. */
export interface Request {
  /** Rows batch only with rows of the same lane, compared by identity. */
  readonly lane: unknown;
  /** When it was admitted, in milliseconds of `performance.now()`; the batcher notes it. */
  arrivedAt: number;
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
  /** Why it can run nothing any more. */
  readonly lost?: Error | undefined;
}

/** How one batch came about and how it went. */
export interface BatchRecord<R extends Request> {
  readonly rows: readonly Row<R>[];
  readonly partition: number;
  readonly batchSize: number;
  readonly reason: CloseReason;
  /** Milliseconds from the arrival of its oldest row until it ran. */
  readonly wait: number;
  /** Milliseconds that it ran. */
  readonly runTime: number;
  readonly error?: unknown;
}

export interface BatcherOptions<R extends Request> {
  readonly name: string;
  readonly batchSize: number;
  readonly batchTimeout: number;
  readonly maxQueue: number;
  readonly slots: readonly Slot[];
  /** Runs the rows and settles their requests; resolves with the error if they failed, and never rejects. */
  dispatch(rows: readonly Row<R>[], partition: number): Promise<unknown>;
  observe(record: BatchRecord<R>): void;
}

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

  constructor(private readonly options: BatcherOptions<R>) {
    const { batchSize, batchTimeout, slots } = options;
    this.loads = slots.map((slot) => ({ slot, batches: 0, finishedAt: 0 }));
    this.idle = [...this.loads];
    this.drained = new Promise((resolve) => (this.finish = resolve));
    this.rows$
      .pipe(
        windowsBy({
          lane: (row) => row.request.lane,
          size: () => batchSize,
          timeout: () => (this.draining ? 0 : batchTimeout),
          flush$: this.flush$,
        }),
      )
      .subscribe((rows) => {
        this.line.join({ lane: rows[0]!.request.lane, rows, size: batchSize, reason: this.reasonOf(rows) });
        this.runAtEndOfTurn();
      });
  }

  /** Queues all rows of the request, or throws and queues none. */
  submit(request: R, rows: number): void {
    const { name, maxQueue } = this.options;
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
    request.arrivedAt = this.now();
    for (let index = 0; index < rows; index++) {
      const row = { request, index };
      if (!this.line.grow(request.lane, row)) {
        this.rows$.next(row);
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

  /** Fails every row that no partition has taken yet. */
  abandon(error: Error): void {
    const rows = this.line.clear();
    this.queued -= rows.length;
    for (const { request } of rows) {
      request.fail(error);
    }
  }

  private reasonOf(rows: readonly Row<R>[]): CloseReason {
    if (rows.length >= this.options.batchSize) {
      return 'full';
    }
    if (this.draining) {
      return 'drain';
    }
    return this.options.batchTimeout === 0 ? 'idle' : 'timeout';
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
        this.run();
      });
    }
  }

  private run(): void {
    for (let window = this.line.head; window; window = this.line.head) {
      const load = this.loadFor(window);
      if (!load) {
        break;
      }
      this.line.take();
      this.queued -= window.rows.length;
      void this.execute(window, load);
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
    for (let load = this.idle.shift(); load; load = this.idle.shift()) {
      if (!load.slot.lost) {
        return load;
      }
    }
    if (window.rows.length < window.size) {
      return undefined;
    }
    return this.loads.find(({ slot, batches }) => !slot.lost && batches > 0 && batches <= slot.prefetch);
  }

  private async execute({ rows, size, reason }: Window<Row<R>>, load: Load): Promise<void> {
    const partition = this.loads.indexOf(load);
    const handedAt = performance.now();
    load.batches++;
    const error = await this.options.dispatch(rows, partition);
    const startedAt = Math.max(handedAt, load.finishedAt);
    load.finishedAt = performance.now();
    load.batches--;
    if (load.batches === 0) {
      this.idle.push(load);
    }
    this.options.observe({
      rows,
      partition,
      batchSize: size,
      reason,
      wait: startedAt - rows[0]!.request.arrivedAt,
      runTime: load.finishedAt - startedAt,
      ...(error === undefined ? {} : { error }),
    });
    this.runAtEndOfTurn();
  }
}
