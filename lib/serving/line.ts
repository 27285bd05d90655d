import { Batch } from '../batch/batch.js';
import type { BatchAxes } from '../batch/template.js';
import { Batcher, type BatchObserver, type BatchOutcome, type BatchRecord } from '../batching/batcher.js';
import { BatchFailedError, isServingError, messageOf, ServingClosedError, ServingLoadError } from '../errors.js';
import type { Opened } from '../partitions/engine.js';
import { axesOf } from '../partitions/model-signature.js';
import { UnfitRows } from '../partitions/partition.js';
import type { PullAhead } from '../streaming/pull-ahead.js';
import { Pulls } from '../streaming/pulls.js';
import type { Source } from '../streaming/source.js';
import { batchObserver } from './batch-observer.js';
import { BatchRun } from './batch-run.js';
import { type Call, type Callbacks, finishCall, finishStream, prepareCall } from './call.js';
import { type CallOptions, onAbort, type StreamOptions } from './call-options.js';
import { CallWatch } from './call-watch.js';
import { checkFit, checkHooks, checkSize, ownHooks } from './fit.js';
import { type Lanes, largestBatch, type ServingLane } from './lanes.js';
import { currentOrigin, inOriginOf } from './origin.js';
import { BatchRequest, type Part, partsOf } from './request.js';
import { releaseOutput } from './output.js';
import { type Reply, ReplyRequest } from './reply-request.js';
import { StreamRequest } from './stream-request.js';
import type { ResolvedServing } from './resolve-definition.js';
import type { BatchLabels } from './serving-event.js';
import type { ServingEvents } from './serving-events.js';
import { eventsOf, replyOf } from './streamed.js';
import { examplesOf, repeated } from './warm-up.js';

/** Starts the work of a request, which settles it. */
type Submit = (request: BatchRequest) => void;

/**
 * A loaded serving at work. This file is the whole line from call to reply:
 *
 *     prepareCall -> | admit -> batcher -> dispatch -> partition.run -> BatchRun | -> finishCall
 *     caller's half                       shared half                            caller's half
 */
export class ServingLine {
  private readonly batcher: Batcher<BatchRequest>;
  private readonly observer: BatchObserver<BatchRequest>;
  private readonly inputAxes: BatchAxes;
  private readonly outputAxes: BatchAxes;
  private readonly pulls = new Pulls();
  /** Calls whose `preprocess` goes on. */
  private readonly preparing = new Set<Promise<Call>>();
  private closed = false;
  private abandoned: Error | undefined;
  /** What generators that still run are ended with. */
  private cut: Error | undefined;

  constructor(
    private readonly options: ResolvedServing,
    private readonly callbacks: Callbacks,
    private readonly lanes: Lanes,
    private readonly opened: Opened,
    private readonly events: ServingEvents,
    /** The keys that calls may have; any key, where there are none. */
    private readonly keys?: readonly string[],
  ) {
    const { name, maxQueue } = options;
    const { partitions: slots, signature } = opened;
    this.inputAxes = axesOf(signature?.inputs ?? []);
    this.outputAxes = axesOf(signature?.outputs ?? []);
    this.observer = batchObserver(events, (record) => this.labelsOf(record));
    this.batcher = new Batcher({
      name,
      maxQueue,
      nextBatch: () => events.nextBatch(),
      slots,
      observer: this.observer,
      dispatch: (rows, partition) => this.dispatch(partsOf(rows), partition, rows[0]!.request.lane.limits.batchSize),
    });
  }

  /** Runs the rows of the input in batches with those of concurrent callers. */
  batchedRun(input: unknown, options: CallOptions): Promise<unknown> {
    return this.answer(input, options, 'batched', this.inBatches);
  }

  /** Runs the input alone and at once, on the first partition. */
  run(input: unknown, options: CallOptions): Promise<unknown> {
    return this.answer(input, options, 'inline', this.alone());
  }

  /** Gives the output of either while it comes. `left` says that its consumer waits no more. */
  async *stream(input: unknown, options: StreamOptions<string>, left: AbortSignal): AsyncGenerator<unknown, undefined> {
    const watch = CallWatch.over(this.events, this.options.name, 'stream');
    let failure: { readonly error: unknown } | undefined;
    try {
      this.refuseOnceClosed();
      options.signal?.throwIfAborted();
      const call = await this.prepare(input);
      const pulled = this.requestsOf(call, { ...options, hooks: ownHooks(this.options.name, options.hooks) }, watch);
      const stops = [
        onAbort(left, () => this.pulls.end(pulled)),
        onAbort(options.signal, (error) => this.pulls.end(pulled, { error })),
      ];
      try {
        yield* finishStream(this.callbacks, call, eventsOf(call, pulled));
      } finally {
        stops.forEach((stop) => stop());
        // Here and not where the events are read: whoever shapes the stream may not have read any of them.
        this.pulls.end(pulled);
      }
    } catch (error) {
      // Whoever leaves early has what he wanted.
      failure = left.aborted ? undefined : { error };
      throw error;
    } finally {
      watch?.ended(failure);
    }
    return undefined;
  }

  /** Runs every allowed size, and the examples, once on every partition. */
  async warmUp(): Promise<void> {
    const rows = await examplesOf(this.options, this.opened.signature, (input) =>
      prepareCall(this.callbacks, input, this.inputAxes),
    );
    const batches = rows.flatMap((row) => {
      const lane = this.admit(row, {});
      const { allowedSizes, batchSize } = lane.limits;
      return repeated(row, allowedSizes ?? [batchSize]).map((batch) => ({ batch, lane }));
    });
    await Promise.all(
      this.opened.partitions.map(async (_, partition) => {
        for (const { batch, lane } of batches) {
          await this.tryOut(new ReplyRequest(batch, lane), partition);
        }
      }),
    );
  }

  /** Still takes calls, but lets none wait for others. */
  drain(): void {
    this.batcher.drain();
  }

  /** Takes no more calls, runs those it has, and ends the partitions. */
  async close(): Promise<void> {
    this.closed = true;
    this.drain();
    await Promise.allSettled(this.preparing);
    await this.pulls.close(this.closedError());
    await this.batcher.close();
    await Promise.all(this.opened.partitions.map((partition) => partition.close()));
  }

  /** Takes no more calls, and answers with the error those that no partition has taken. */
  abandon(error: Error): void {
    this.closed = true;
    this.abandoned = error;
    this.pulls.finishAll(error);
    void this.batcher.close();
    this.batcher.abandon(error);
  }

  /** The rows that no partition has taken yet. */
  get depth(): number {
    return this.batcher.depth;
  }

  /** As {@link abandon}; and a generator, which may never end by itself, ends at its next step. */
  cutShort(error: Error): void {
    this.abandon(error);
    this.cut = error;
  }

  private async answer(input: unknown, options: CallOptions, mode: 'batched' | 'inline', submit: Submit): Promise<unknown> {
    const watch = CallWatch.over(this.events, this.options.name, mode);
    try {
      this.refuseOnceClosed();
      options.signal?.throwIfAborted();
      const prepared = this.prepare(input);
      // No await where there is nothing to wait for: it would cost every call a turn of the microtask queue.
      const call = prepared instanceof Promise ? await prepared : prepared;
      const { rows, metadata } = await this.collect(call, options, submit, watch);
      const output = releaseOutput(rows);
      watch?.answered();
      const reply = finishCall(this.callbacks, call, { output, metadata });
      const answer = reply instanceof Promise ? await reply : reply;
      watch?.ended();
      return answer;
    } catch (error) {
      watch?.ended({ error });
      throw error;
    }
  }

  private prepare(input: unknown): Call | Promise<Call> {
    const prepared = prepareCall(this.callbacks, input, this.inputAxes);
    if (prepared instanceof Promise) {
      this.preparing.add(prepared);
      const forget = (): unknown => this.preparing.delete(prepared);
      prepared.then(forget, forget);
    }
    return prepared;
  }

  private collect(call: Call, options: CallOptions, submit: Submit, watch?: CallWatch): Promise<Reply> {
    if (!(call.rows instanceof Batch)) {
      return this.collectAll(call, call.rows, options, submit, watch);
    }
    const request = new ReplyRequest(call.rows, this.admit(call.rows, options, watch), watch);
    submit(request);
    return options.signal ? untilAbort(options.signal, request) : request.reply;
  }

  private async collectAll(
    call: Call,
    source: Source<Batch>,
    options: CallOptions,
    submit: Submit,
    watch?: CallWatch,
  ): Promise<Reply> {
    const pulled = this.pull(call, source, (batch) => {
      const request = new ReplyRequest(batch, this.admit(batch, options, watch), watch);
      // Until its turn comes, nobody waits for it.
      request.reply.catch(() => {});
      submit(request);
      return request;
    });
    const stop = onAbort(options.signal, (error) => this.pulls.end(pulled, { error }));
    try {
      return await replyOf(this.options.name, pulled);
    } finally {
      stop();
      this.pulls.end(pulled);
    }
  }

  private requestsOf(call: Call, options: StreamOptions<string>, watch: CallWatch | undefined): PullAhead<Batch, StreamRequest> {
    const submit = options.inline ? this.alone() : this.inBatches;
    return this.pull(call, this.piecesOf(call, options), (batch) => {
      const request = new StreamRequest(batch, this.admit(batch, options, watch), watch, askedHooks(options));
      submit(request);
      return request;
    });
  }

  /** What a stream submits at a time: as much as fits into a batch, so that a large call, too, goes only as fast as it is read. */
  private piecesOf({ rows }: Call, options: StreamOptions<string>): Source<Batch> {
    if (!(rows instanceof Batch)) {
      return rows;
    }
    const size = largestBatch(this.lanes.optionsOf(rows.key), options.inline);
    return (askedHooks(options) || rows.size === 0 ? [rows] : rows.chunksOf(size)).values();
  }

  /** As many rows under way as keep every partition busy while the next ones come, and as the queue has room for. */
  private pull<R extends BatchRequest>({ isOpen }: Call, source: Source<Batch>, start: (batch: Batch) => R): PullAhead<Batch, R> {
    const largest = Math.max(...this.lanes.keys.map((key) => this.lanes.optionsOf(key).batchSize));
    const window = Math.min(2 * this.opened.partitions.length * largest, this.options.maxQueue - largest + 1);
    return this.pulls.begin({ source, start, window, isOpen });
  }

  /** The lane for the rows, if they fit the serving. */
  private admit(batch: Batch, options: StreamOptions<string>, watch?: CallWatch): ServingLane {
    const { name, separateOrigins } = this.options;
    const { signature } = this.opened;
    checkSize(this.options, batch);
    checkFit(name, batch, this.lanes.optionsOf(batch.key), this.keys, signature);
    // After the checks: what is refused is not remembered.
    const lane = this.lanes.laneOf(batch, separateOrigins ? (options.origin ?? currentOrigin()) : undefined);
    const hooks = askedHooks(options);
    if (hooks) {
      checkHooks(name, batch, hooks, largestBatch(lane.limits, options.inline), signature);
    }
    watch?.queued(batch.size);
    return lane;
  }

  private readonly inBatches: Submit = (request) => {
    this.batcher.submit(request);
    request.queue = this.batcher;
  };

  /** One request after the other, each cut into pieces of the size for runs. */
  private alone(): Submit {
    let last = Promise.resolve();
    return (request) => {
      last = last.then(() => this.runAlone(request));
    };
  }

  private async runAlone(request: BatchRequest): Promise<void> {
    if (this.abandoned) {
      request.fail(this.abandoned);
    }
    const { size } = request;
    const { runSize: step } = request.lane.limits;
    for (let offset = 0; offset < size && !request.isOver; offset += step) {
      const count = Math.min(step, size - offset);
      const rows = Array.from({ length: count }, (_, i) => ({ request, index: offset + i }));
      const id = this.events.nextBatch();
      const record = { id, rows, partition: 0, batchSize: count, reason: 'inline', wait: 0, queued: 0 } as const;
      this.observer.batchStarted(record);
      const startedAt = performance.now();
      const outcome = await this.dispatch(partsOf(rows), 0, step);
      this.observer.batchEnded(record, performance.now() - startedAt, outcome);
    }
  }

  /** Runs the request so that a fault is found; nobody waits for what it gives. */
  private async tryOut(request: ReplyRequest, partition: number): Promise<void> {
    request.isOver = true;
    const { error: cause } = await this.dispatch([{ request, offset: 0, count: request.size }], partition, request.size);
    if (cause !== undefined) {
      throw new ServingLoadError(
        `The warm-up with ${request.size} rows of key "${request.batch.key}" failed: ${messageOf(cause)}`,
        {
          cause,
        },
      );
    }
  }

  /** Runs the rows as one batch, which padding makes no larger than it may be, and settles their requests. */
  private async dispatch(parts: readonly Part[], partition: number, largest: number): Promise<BatchOutcome> {
    const run = new BatchRun(parts, this.outputAxes, largest, () => this.cut);
    const info = run.info(partition);
    const runBatch = () => this.opened.partitions[partition]!.run(run.batch, info, run);
    try {
      run.checkRows();
      run.end(await inOriginOf(parts[0]!.request.lane, runBatch));
      return run.outcome;
    } catch (cause) {
      if (cause instanceof UnfitRows) {
        const others = run.without(cause);
        return others.length > 0
          ? this.dispatch(others, partition, largest)
          : { ...run.outcome, error: [...cause.faults.values()][0] };
      }
      const error = this.batchError(cause, run.batch.size);
      run.fail(error);
      return { ...run.outcome, error };
    }
  }

  private refuseOnceClosed(): void {
    if (this.closed) {
      throw this.closedError();
    }
  }

  private closedError(): Error {
    return new ServingClosedError(`Serving "${this.options.name}" is closed and takes no more calls`);
  }

  private batchError(cause: unknown, size: number): unknown {
    return isServingError(cause)
      ? cause
      : new BatchFailedError(`Serving "${this.options.name}": a batch of ${size} rows failed: ${messageOf(cause)}`, { cause });
  }

  private labelsOf({ rows }: BatchRecord<BatchRequest>): BatchLabels {
    const { key, origin } = rows[0]!.request.lane;
    const calls = partsOf(rows).flatMap(({ request }) => request.watch?.call ?? []);
    return { serving: this.options.name, key, origin, calls: [...new Set(calls)] };
  }
}

function askedHooks({ hooks }: StreamOptions<string>): readonly string[] | undefined {
  return hooks?.length ? hooks : undefined;
}

async function untilAbort(signal: AbortSignal, request: ReplyRequest): Promise<Reply> {
  const stop = onAbort(signal, (reason) => request.fail(reason));
  try {
    return await request.reply;
  } finally {
    stop();
  }
}
