import { Batch } from '../batch/batch.js';
import type { BatchAxes } from '../batch/template.js';
import { mostRowsOf } from '../batching/admission.js';
import { Batcher } from '../batching/batcher.js';
import { messageOf, ServingClosedError, ServingLoadError } from '../errors.js';
import type { OpenedEngine } from '../partitions/engine.js';
import type { ServingKind } from '../partitions/handler.partition.js';
import { axesOf } from '../partitions/onnx/model-signature.js';
import { type Partition, type PartitionStatus, statusOf } from '../partitions/partition.js';
import type { PullAhead } from '../streaming/pull-ahead.js';
import { Pulls } from '../streaming/pulls.js';
import type { Source } from '../streaming/source.js';
import { BatchRunner } from '../execution/batch-runner.js';
import {
  type Call,
  type Callbacks,
  dropCall,
  finishCall,
  finishStream,
  prepareCall,
  withKey,
} from '../execution/call.js';
import { type CallOptions, onAbort, type StreamOptions } from '../context/call-options.js';
import {
  type ResolvedCallOptions,
  isCancellable,
  onCancel,
  resolveCallOptions,
  untilCancelled,
  type InternalCallOptions,
} from '../execution/resolved-call-options.js';
import { CallRecorder } from '../events/call-recorder.js';
import {
  costOf,
  validateBatch,
  checkHooks,
  checkSize,
  ownHooks,
} from '../execution/validate-batch.js';
import { type Lanes, largestBatch, type ServingLane } from '../execution/lanes.js';
import { currentOrigin, type Origin } from '../context/caller-context.js';
import { releaseOutput } from '../execution/output.js';
import { type Reply, ReplyRequest } from '../execution/reply-request.js';
import type { BatchRequest } from '../execution/request.js';
import type { SharedCalls } from '../deduplication/shared-calls.js';
import type { CallMode } from '../events/serving-event.js';
import type { EventHub } from '../events/event-hub.js';
import { StreamRequest, eventsOf, replyOf } from '../execution/stream-request.js';
import { Waits } from './waits.js';
import { examplesOf, repeated } from '../execution/warm-up.js';
import type { ResolvedServing } from '../definition/resolved-serving.js';

/** One call on its way. */
interface CallContext {
  readonly options: StreamOptions<string> & InternalCallOptions;
  readonly terms: ResolvedCallOptions;
  readonly watch: CallRecorder | undefined;
  /** Called when rows of the call were admitted. */
  readonly onAdmitted?: () => void;
}

/**
 * A loaded serving at work. This file is the whole line from call to reply:
 *
 *     prepareCall -> | admit -> batcher -> BatchRunner -> partition.run -> BatchRun | -> finishCall
 *     caller's half                        shared half                              caller's half
 *
 * The calls of `batchedRun` share batches. Those of `run` have a line of their own with one
 * partition, where each batch holds rows of one call alone; all else is the same for both.
 */
export class Pipeline {
  private readonly batcher: Batcher<BatchRequest>;
  private readonly runner: BatchRunner;
  private readonly inputAxes: BatchAxes;
  private readonly pulls = new Pulls();
  /** Calls whose `preprocess` runs, and those whose `postprocess` does. */
  private readonly preparing = new Waits();
  private readonly finishing = new Waits();
  private closed = false;
  private closing: Promise<void> | undefined;

  constructor(
    private readonly options: ResolvedServing,
    private readonly callbacks: Callbacks,
    private readonly lanes: Lanes,
    private readonly opened: OpenedEngine,
    private readonly events: EventHub,
    private readonly kind: ServingKind,
    /** What joins calls that ask the same, in a serving that wants that. */
    private readonly shared?: SharedCalls,
  ) {
    const { name, maxQueue, maxQueueCost, order } = options;
    const { partitions: targets, signature } = opened;
    this.inputAxes = axesOf(signature?.inputs ?? []);
    this.runner = new BatchRunner(name, options, opened, events);
    const { observer, dispatch } = this.runner;
    const nextBatch = () => events.nextBatch();
    this.batcher = new Batcher({
      name,
      maxQueue,
      maxQueueCost,
      order,
      targets,
      nextBatch,
      observer,
      dispatch,
    });
  }

  /** Runs the rows of the input; resolves with the reply. */
  run(input: unknown, options: InternalCallOptions): Promise<unknown> {
    return this.shared
      ? this.answerShared(this.shared, input, options)
      : this.answer(input, options);
  }

  /** Gives the output of either while it comes. `left` says that its consumer waits no more. */
  async *stream(
    input: unknown,
    options: StreamOptions<string> & InternalCallOptions,
    left: AbortSignal,
  ): AsyncGenerator<unknown, undefined> {
    const watch = CallRecorder.start(this.events, this.options.name, 'stream', options.signal);
    let failure: { readonly error: unknown } | undefined;
    try {
      const own = { ...options, hooks: ownHooks(this.options.name, options.hooks) };
      const passage = { options: own, terms: this.enter(input, options, 'stream'), watch };
      const call = await this.prepare(input, passage.terms);
      const pulled = this.requestsOf(call, passage);
      pulled.onStop(onAbort(left, () => this.pulls.end(pulled)));
      pulled.onStop(onCancel(passage.terms, (error) => this.pulls.end(pulled, { error })));
      try {
        const reader = this.pulls.readerOf(pulled, () => this.streamEnded(watch, options));
        const read = eventsOf(call, reader);
        yield* finishStream(this.callbacks, call, read, (work) =>
          this.finishing.for(work, passage.terms),
        );
      } finally {
        // Here and not where the events are read: whoever shapes the stream may not have read any
        // of them.
        this.pulls.end(pulled);
      }
    } catch (error) {
      // Whoever leaves early has what he wanted.
      failure = left.aborted ? undefined : { error };
      throw error;
    } finally {
      this.streamEnded(watch, options, failure);
    }
    return undefined;
  }

  private streamEnded(
    watch: CallRecorder | undefined,
    { signal }: CallOptions,
    failure?: { readonly error: unknown },
  ): void {
    const { counters } = this.events;
    if (failure) {
      counters.failed(failure.error, signal);
    } else {
      counters.answered++;
    }
    watch?.ended(failure);
  }

  /**
   * Runs every allowed size, and the examples, once on every partition, and again where that has
   * been started again. Gives the keys whose allowed sizes it cannot run, for want of an example.
   */
  async warmUp(): Promise<readonly string[]> {
    const rows = await examplesOf(this.options, this.opened.signature, (input) =>
      prepareCall(this.callbacks, input, this.inputAxes),
    );
    const batches = rows.flatMap((row) => {
      const lane = this.admit(row, {});
      const { allowedSizes, batchSize } = lane.limits;
      return repeated(row, allowedSizes ?? [batchSize]).map((batch) => ({ batch, lane }));
    });
    await Promise.all(
      this.opened.partitions.map((partition, index) => {
        const warm = async (runner: Partition): Promise<void> => {
          for (const { batch, lane } of batches) {
            await this.tryOut(new ReplyRequest(batch, lane), index, runner);
          }
        };
        return partition.warmUp ? partition.warmUp(warm) : warm(partition);
      }),
    );
    const warm = new Set(rows.map(({ key }) => key));
    return this.lanes.keys.filter(
      (key) => this.lanes.optionsOf(key).allowedSizes && !warm.has(key),
    );
  }

  /** Still takes calls, but lets none wait for others. */
  drain(): void {
    this.batcher.drain();
  }

  /** Takes no more calls, runs those it has, and ends the partitions. */
  close(): Promise<void> {
    return (this.closing ??= this.finish());
  }

  private async finish(): Promise<void> {
    this.closed = true;
    this.drain();
    await this.shared?.idle();
    await this.preparing.idle();
    await this.pulls.close(this.closedError());
    await this.batcher.close();
    await Promise.all([
      this.finishing.idle(),
      ...this.opened.partitions.map((partition) => partition.close()),
    ]);
  }

  /** Takes no more calls, and answers with the error those that no partition has taken. */
  abandon(error: Error): void {
    this.closed = true;
    this.pulls.finishAll(error);
    this.batcher.abandon(error);
  }

  /**
   * Takes no more calls, and answers every call that is left with the error. Generators end at
   * their next step, processes at once. Says whether there were calls.
   */
  end(error: Error): boolean {
    const hadCalls = this.preparing.size + this.finishing.size + this.pulls.size > 0;
    this.closed = true;
    this.runner.terminate(error);
    this.preparing.end(error);
    this.finishing.end(error);
    this.pulls.endAll(error);
    const hadBatches = this.batcher.end(error);
    this.opened.partitions.forEach((partition) => partition.kill && partition.halt?.());
    return hadCalls || hadBatches;
  }

  /** Ends threads as soon as their event loop turns. */
  halt(): void {
    this.opened.partitions.forEach((partition) => partition.halt?.());
  }

  /** What runs although its callers were answered, in words. */
  unfinished(): readonly string[] {
    return this.batcher.unfinished();
  }

  /** The rows that no partition has taken yet. */
  get depth(): number {
    return this.batcher.depth;
  }

  get partitions(): readonly PartitionStatus[] {
    return this.opened.partitions.map(statusOf);
  }

  private async answer(input: unknown, options: InternalCallOptions): Promise<unknown> {
    const mode = this.kind === 'inline' ? 'inline' : 'batched';
    const watch = CallRecorder.start(this.events, this.options.name, mode, options.signal);
    try {
      const terms = this.enter(input, options, mode);
      const prepared = this.prepare(input, terms);
      // No await where there is nothing to wait for: it would cost every call a turn of the
      // microtask queue.
      const call = prepared instanceof Promise ? await prepared : prepared;
      const said = await this.collect(call, { options, terms, watch });
      const output = releaseOutput(said.rows, options.zeroCopy && !this.callbacks.postprocess);
      watch?.answered();
      const reply = finishCall(this.callbacks, call, output, said);
      const answer = reply instanceof Promise ? await this.finishing.for(reply, terms) : reply;
      this.events.counters.answered++;
      watch?.ended();
      return answer;
    } catch (error) {
      this.events.counters.failed(error, options.signal);
      watch?.ended({ error });
      throw error;
    }
  }

  /** The terms of one more call, unless none is taken any more. */
  private enter(input: unknown, options: InternalCallOptions, mode: CallMode): ResolvedCallOptions {
    const isStream = mode === 'stream';
    this.refuseOnceClosed();
    options.signal?.throwIfAborted();
    const timeout = isStream ? undefined : this.options.timeout;
    return options.terms ?? resolveCallOptions(this.callbacks, input, options, timeout, isStream);
  }

  /**
   * Shares the rows with calls that ask the same; each caller has its own terms, `info` and reply.
   */
  private async answerShared(
    shared: SharedCalls,
    input: unknown,
    options: InternalCallOptions,
  ): Promise<unknown> {
    const watch = CallRecorder.start(this.events, this.options.name, 'batched', options.signal);
    try {
      const terms = this.enter(input, options, 'batched');
      const { preprocess, postprocess } = this.callbacks;
      const { answer, answeredBy } = await shared.answer({
        input,
        origin: this.originOf(options),
        key: terms.key,
        onStop: (leave) => onCancel(terms, leave),
        watch,
        prepare: preprocess && postprocess && (() => this.infoOf(input, terms)),
        run: async (own, left, onAdmitted) => {
          const passage = {
            options,
            terms: { ...terms, signal: left, deadline: Infinity },
            watch,
            onAdmitted,
          };
          const call = await this.prepare(own, passage.terms);
          return { call, reply: await this.collect(call, passage) };
        },
        finish: (call, output, said) => {
          const reply = finishCall(this.callbacks, call, output, said);
          return reply instanceof Promise ? this.finishing.for(reply, terms) : reply;
        },
      });
      this.events.counters.answered++;
      watch?.ended(answeredBy && { answeredBy });
      return answer;
    } catch (error) {
      this.events.counters.failed(error, options.signal);
      watch?.ended({ error });
      throw error;
    }
  }

  private prepare(input: unknown, terms: ResolvedCallOptions): Call | Promise<Call> {
    const { key } = terms;
    const prepared = prepareCall(this.callbacks, input, this.inputAxes);
    if (!(prepared instanceof Promise)) {
      return key === undefined ? prepared : withKey(this.callbacks, prepared, key);
    }
    const named =
      key === undefined ? prepared : prepared.then((call) => withKey(this.callbacks, call, key));
    const call = this.preparing.for(named, terms);
    // The call may have ended before preprocess has.
    call.catch(() => prepared.then(dropCall, () => {}));
    return call;
  }

  /** The call without its rows, which nobody runs. */
  private async infoOf(input: unknown, terms: ResolvedCallOptions): Promise<Call> {
    const call = await this.prepare(input, terms);
    dropCall(call);
    return call;
  }

  private collect(call: Call, passage: CallContext): Promise<Reply> {
    if (!(call.rows instanceof Batch)) {
      return this.collectAll(call, call.rows, passage);
    }
    const { terms } = passage;
    const request = this.requestOf(call.rows, passage);
    if (isCancellable(terms)) {
      return untilCancelled(terms, request, () => this.submit(request, passage), request.reply);
    }
    this.submit(request, passage);
    return request.reply;
  }

  private async collectAll(
    call: Call,
    source: Source<Batch>,
    passage: CallContext,
  ): Promise<Reply> {
    const pulled = this.pull(call, passage.terms, source, (batch, cost) => {
      const request = this.requestOf(batch, passage, cost);
      // Until its turn comes, nobody waits for it.
      request.reply.catch(() => {});
      this.submit(request, passage);
      return request;
    });
    pulled.onStop(onCancel(passage.terms, (error) => this.pulls.end(pulled, { error })));
    try {
      return await replyOf(this.options.name, pulled);
    } finally {
      this.pulls.end(pulled);
    }
  }

  private requestOf(
    batch: Batch,
    { options, terms, watch }: CallContext,
    cost?: number,
  ): ReplyRequest {
    const lane = this.admit(batch, options, watch);
    return new ReplyRequest(batch, lane, watch, terms, cost ?? costOf(this.callbacks, batch));
  }

  private requestsOf(call: Call, passage: CallContext): PullAhead<Batch, StreamRequest> {
    const { options, terms, watch } = passage;
    return this.pull(call, terms, this.piecesOf(call, options), (batch, cost) => {
      const lane = this.admit(batch, options, watch);
      const request = new StreamRequest(batch, lane, watch, askedHooks(options), terms, cost);
      this.submit(request, passage);
      return request;
    });
  }

  /**
   * What a stream submits at a time: as much as fits into a batch, so that a large call, too, goes
   * only as fast as it is read.
   */
  private piecesOf({ rows }: Call, options: StreamOptions<string>): Source<Batch> {
    if (!(rows instanceof Batch)) {
      return rows;
    }
    const size = largestBatch(this.lanes.optionsOf(rows.key), this.kind === 'inline');
    return (askedHooks(options) || rows.size === 0 ? [rows] : rows.chunksOf(size)).values();
  }

  /**
   * As many rows under way as keep every partition busy while the next ones come, and as the queue
   * has room for.
   */
  private pull<R extends BatchRequest>(
    { isOpen }: Call,
    terms: ResolvedCallOptions,
    source: Source<Batch>,
    start: (batch: Batch, cost: number) => R,
  ): PullAhead<Batch, R> {
    const largest = Math.max(...this.lanes.keys.map((key) => this.lanes.optionsOf(key).batchSize));
    // What is left to others it would be refused.
    const { maxQueue, maxQueueCost: mostCost = Infinity } = this.options;
    const room = mostRowsOf(terms, maxQueue);
    const busy = 2 * this.opened.partitions.length * largest;
    // Rows that are here already go on until the first of them can have been read: they keep their
    // place.
    const window = Math.min(isOpen ? busy : busy + largest, Math.max(1, room - largest + 1));
    return this.pulls.begin({
      source,
      start,
      window,
      isOpen,
      mostCost,
      costOf: (batch) => costOf(this.callbacks, batch),
    });
  }

  /** The lane for the rows, if they fit the serving. */
  private admit(batch: Batch, options: CallContext['options'], watch?: CallRecorder): ServingLane {
    const { name } = this.options;
    const { signature } = this.opened;
    checkSize(this.options, batch);
    const isInline = this.kind === 'inline';
    const keys = isInline ? undefined : this.lanes.keys;
    validateBatch(
      name,
      batch,
      this.lanes.optionsOf(batch.key),
      keys,
      signature,
      this.options.template,
    );
    const origin = this.originOf(options);
    // After the checks: what is refused is not remembered.
    const lane = isInline
      ? this.lanes.inlineLaneOf(batch, this.options.maxRows, origin)
      : this.lanes.laneOf(batch, origin, options.group);
    const hooks = askedHooks(options);
    if (hooks) {
      checkHooks(name, batch, hooks, largestBatch(lane.limits, isInline), signature);
    }
    watch?.queued(batch.size);
    return lane;
  }

  private originOf({ origin }: CallOptions): Origin | undefined {
    return this.options.separateOrigins ? (origin ?? currentOrigin()) : undefined;
  }

  private submit(request: BatchRequest, { onAdmitted }: CallContext): void {
    this.batcher.submit(request);
    onAdmitted?.();
  }

  /** Runs the request so that a fault is found; nobody waits for what it gives. */
  private async tryOut(request: ReplyRequest, index: number, partition: Partition): Promise<void> {
    const cause = await this.runner.tryOut(request, index, partition);
    if (cause !== undefined) {
      throw new ServingLoadError(
        `The warm-up with ${request.size} rows of key "${request.batch.key}" failed: ` +
          messageOf(cause),
        { cause },
      );
    }
  }

  private refuseOnceClosed(): void {
    if (this.closed) {
      throw this.closedError();
    }
  }

  private closedError(): Error {
    return new ServingClosedError(
      `Serving "${this.options.name}" is closed and takes no more calls`,
    );
  }
}

function askedHooks({ hooks }: StreamOptions<string>): readonly string[] | undefined {
  return hooks?.length ? hooks : undefined;
}
