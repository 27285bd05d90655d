import { Batch } from '../batch/batch.js';
import type { BatchAxes } from '../batch/template.js';
import { mostRowsOf } from '../batching/admission.js';
import { Batcher } from '../batching/batcher.js';
import { messageOf, ServingClosedError, ServingLoadError } from '../errors.js';
import type { Opened } from '../partitions/engine.js';
import { axesOf } from '../partitions/model-signature.js';
import type { Origin, Partition } from '../partitions/partition.js';
import { type PartitionStatus, statusOf } from '../partitions/partition-status.js';
import type { PullAhead } from '../streaming/pull-ahead.js';
import { Pulls } from '../streaming/pulls.js';
import type { Source } from '../streaming/source.js';
import { BatchRunner } from './batch-runner.js';
import { type Call, type Callbacks, dropCall, finishCall, finishStream, prepareCall } from './call.js';
import { type CallOptions, onAbort, type OwnCallOptions, type StreamOptions } from './call-options.js';
import { type CallTerms, inTime, mayStop, onStop, termsOf, untilStop } from './call-terms.js';
import { CallWatch } from './call-watch.js';
import { costOf } from './cost.js';
import { checkFit, checkHooks, checkSize, ownHooks } from './fit.js';
import { type Lanes, largestBatch, type ServingLane } from './lanes.js';
import { currentOrigin } from './origin.js';
import { releaseOutput } from './output.js';
import { type Reply, ReplyRequest } from './reply-request.js';
import type { BatchRequest } from './request.js';
import type { ResolvedServing } from './resolve-definition.js';
import type { SharedCalls } from './shared-calls.js';
import type { CallMode } from './serving-event.js';
import type { ServingEvents } from './serving-events.js';
import { StreamRequest } from './stream-request.js';
import { eventsOf, replyOf } from './streamed.js';
import { examplesOf, repeated } from './warm-up.js';

/** Starts the work of a request, which settles it. */
type Submit = (request: BatchRequest) => void;

/** One call on its way. */
interface Passage {
  readonly options: StreamOptions<string>;
  readonly terms: CallTerms;
  readonly submit: Submit;
  readonly watch: CallWatch | undefined;
}

/**
 * A loaded serving at work. This file is the whole line from call to reply:
 *
 *     prepareCall -> | admit -> batcher -> BatchRunner -> partition.run -> BatchRun | -> finishCall
 *     caller's half                        shared half                              caller's half
 */
export class ServingLine {
  private readonly batcher: Batcher<BatchRequest>;
  private readonly runner: BatchRunner;
  private readonly inputAxes: BatchAxes;
  private readonly pulls = new Pulls();
  /** Calls whose `preprocess` goes on. */
  private readonly preparing = new Set<Promise<Call>>();
  private closed = false;
  private abandoned: Error | undefined;

  constructor(
    private readonly options: ResolvedServing,
    private readonly callbacks: Callbacks,
    private readonly lanes: Lanes,
    private readonly opened: Opened,
    private readonly events: ServingEvents,
    /** The keys that calls may have; any key, where there are none. */
    private readonly keys?: readonly string[],
    /** What joins calls that ask the same, in a serving that wants that. */
    private readonly shared?: SharedCalls,
  ) {
    const { name, maxQueue, maxQueueCost, order } = options;
    const { partitions: slots, signature } = opened;
    this.inputAxes = axesOf(signature?.inputs ?? []);
    this.runner = new BatchRunner(name, options, opened, events);
    const { observer, dispatch } = this.runner;
    const nextBatch = () => events.nextBatch();
    this.batcher = new Batcher({ name, maxQueue, maxQueueCost, order, slots, nextBatch, observer, dispatch });
  }

  /** Runs the rows of the input in batches with those of concurrent callers. */
  batchedRun(input: unknown, options: OwnCallOptions): Promise<unknown> {
    return this.shared ? this.answerShared(this.shared, input, options) : this.answer(input, options, 'batched', this.inBatches);
  }

  /** Runs the input alone and at once, on the first partition. */
  run(input: unknown, options: OwnCallOptions): Promise<unknown> {
    return this.answer(input, options, 'inline', this.alone());
  }

  /** Gives the output of either while it comes. `left` says that its consumer waits no more. */
  async *stream(input: unknown, options: StreamOptions<string>, left: AbortSignal): AsyncGenerator<unknown, undefined> {
    const watch = CallWatch.over(this.events, this.options.name, 'stream', options.signal);
    let failure: { readonly error: unknown } | undefined;
    try {
      const submit = options.inline ? this.alone() : this.inBatches;
      const own = { ...options, hooks: ownHooks(this.options.name, options.hooks) };
      const passage = { options: own, terms: this.enter(input, options, 'stream'), submit, watch };
      const call = await this.prepare(input, passage.terms);
      const pulled = this.requestsOf(call, passage);
      pulled.onStop(onAbort(left, () => this.pulls.end(pulled)));
      pulled.onStop(onStop(passage.terms, (error) => this.pulls.end(pulled, { error })));
      try {
        const reader = this.pulls.readerOf(pulled, () => this.streamEnded(watch, options));
        yield* finishStream(this.callbacks, call, eventsOf(call, reader));
      } finally {
        // Here and not where the events are read: whoever shapes the stream may not have read any of them.
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

  private streamEnded(watch: CallWatch | undefined, { signal }: CallOptions, failure?: { readonly error: unknown }): void {
    const { counters } = this.events;
    if (failure) {
      counters.failed(failure.error, signal);
    } else {
      counters.answered++;
    }
    watch?.ended(failure);
  }

  /** Runs every allowed size, and the examples, once on every partition, and again where that has been started again. */
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
      this.opened.partitions.map((partition, index) => {
        const warm = async (runner: Partition): Promise<void> => {
          for (const { batch, lane } of batches) {
            await this.tryOut(new ReplyRequest(batch, lane), index, runner);
          }
        };
        return partition.warmUp ? partition.warmUp(warm) : warm(partition);
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
    await this.shared?.idle();
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

  get partitions(): readonly PartitionStatus[] {
    return this.opened.partitions.map(statusOf);
  }

  /** As {@link abandon}; and what may never end by itself is ended: a generator at its next step, a process at once. */
  cutShort(error: Error): void {
    this.abandon(error);
    this.runner.cutShort(error);
    for (const partition of this.opened.partitions) {
      if (partition.kill) {
        // Told to close, it is not started again.
        void partition.close();
        partition.kill();
      }
    }
  }

  private async answer(input: unknown, options: OwnCallOptions, mode: 'batched' | 'inline', submit: Submit): Promise<unknown> {
    const watch = CallWatch.over(this.events, this.options.name, mode, options.signal);
    try {
      const terms = this.enter(input, options, mode);
      const prepared = this.prepare(input, terms);
      // No await where there is nothing to wait for: it would cost every call a turn of the microtask queue.
      const call = prepared instanceof Promise ? await prepared : prepared;
      const said = await this.collect(call, { options, terms, submit, watch });
      const output = releaseOutput(said.rows, options.lends && !this.callbacks.postprocess);
      watch?.answered();
      const reply = finishCall(this.callbacks, call, output, said);
      const answer = reply instanceof Promise ? await inTime(terms, reply) : reply;
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
  private enter(input: unknown, options: CallOptions, mode: CallMode): CallTerms {
    const isStream = mode === 'stream';
    this.refuseOnceClosed();
    options.signal?.throwIfAborted();
    const timeout = isStream ? undefined : this.options.timeout;
    return termsOf(this.callbacks, input, options, timeout, isStream);
  }

  /** As the call of whoever asks the same first: its priority and tenant count, and the time and the signal of each caller. */
  private async answerShared(shared: SharedCalls, input: unknown, options: CallOptions): Promise<unknown> {
    const watch = CallWatch.over(this.events, this.options.name, 'batched', options.signal);
    try {
      const terms = this.enter(input, options, 'batched');
      const { answer, answeredBy } = await shared.answer({
        input,
        origin: this.originOf(options),
        onStop: (leave) => onStop(terms, leave),
        watch,
        run: async (left) => {
          const passage = { options, terms: { ...terms, signal: left, deadline: Infinity }, submit: this.inBatches, watch };
          const call = await this.prepare(input, passage.terms);
          return { call, reply: await this.collect(call, passage) };
        },
        finish: (call, output, said) => finishCall(this.callbacks, call, output, said),
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

  private prepare(input: unknown, terms: CallTerms): Call | Promise<Call> {
    const prepared = prepareCall(this.callbacks, input, this.inputAxes);
    if (!(prepared instanceof Promise)) {
      return prepared;
    }
    const call = inTime(terms, prepared);
    this.preparing.add(call);
    const forget = (): unknown => this.preparing.delete(call);
    call.then(forget, forget);
    // The call may have ended before preprocess has.
    call.catch(() => prepared.then(dropCall, () => {}));
    return call;
  }

  private collect(call: Call, passage: Passage): Promise<Reply> {
    if (!(call.rows instanceof Batch)) {
      return this.collectAll(call, call.rows, passage);
    }
    const { terms, submit } = passage;
    const request = this.requestOf(call.rows, passage);
    if (mayStop(terms)) {
      return untilStop(terms, request, () => submit(request), request.reply);
    }
    submit(request);
    return request.reply;
  }

  private async collectAll(call: Call, source: Source<Batch>, passage: Passage): Promise<Reply> {
    const pulled = this.pull(call, passage.terms, source, (batch, cost) => {
      const request = this.requestOf(batch, passage, cost);
      // Until its turn comes, nobody waits for it.
      request.reply.catch(() => {});
      passage.submit(request);
      return request;
    });
    pulled.onStop(onStop(passage.terms, (error) => this.pulls.end(pulled, { error })));
    try {
      return await replyOf(this.options.name, pulled);
    } finally {
      this.pulls.end(pulled);
    }
  }

  private requestOf(batch: Batch, { options, terms, watch }: Passage, cost?: number): ReplyRequest {
    const lane = this.admit(batch, options, watch);
    return new ReplyRequest(batch, lane, watch, terms, cost ?? costOf(this.callbacks, batch));
  }

  private requestsOf(call: Call, { options, terms, submit, watch }: Passage): PullAhead<Batch, StreamRequest> {
    return this.pull(call, terms, this.piecesOf(call, options), (batch, cost) => {
      const lane = this.admit(batch, options, watch);
      const request = new StreamRequest(batch, lane, watch, askedHooks(options), terms, cost);
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
  private pull<R extends BatchRequest>(
    { isOpen }: Call,
    terms: CallTerms,
    source: Source<Batch>,
    start: (batch: Batch, cost: number) => R,
  ): PullAhead<Batch, R> {
    const largest = Math.max(...this.lanes.keys.map((key) => this.lanes.optionsOf(key).batchSize));
    // What is left to others it would be refused.
    const { maxQueue, maxQueueCost: mostCost = Infinity } = this.options;
    const room = mostRowsOf(terms, maxQueue);
    const busy = 2 * this.opened.partitions.length * largest;
    // Rows that are here already go on until the first of them can have been read: they keep their place.
    const window = Math.min(isOpen ? busy : busy + largest, Math.max(1, room - largest + 1));
    return this.pulls.begin({ source, start, window, isOpen, mostCost, costOf: (batch) => costOf(this.callbacks, batch) });
  }

  /** The lane for the rows, if they fit the serving. */
  private admit(batch: Batch, options: StreamOptions<string>, watch?: CallWatch): ServingLane {
    const { name } = this.options;
    const { signature } = this.opened;
    checkSize(this.options, batch);
    checkFit(name, batch, this.lanes.optionsOf(batch.key), this.keys, signature, this.options.template);
    // After the checks: what is refused is not remembered.
    const lane = this.lanes.laneOf(batch, this.originOf(options));
    const hooks = askedHooks(options);
    if (hooks) {
      checkHooks(name, batch, hooks, largestBatch(lane.limits, options.inline), signature);
    }
    watch?.queued(batch.size);
    return lane;
  }

  private originOf({ origin }: CallOptions): Origin | undefined {
    return this.options.separateOrigins ? (origin ?? currentOrigin()) : undefined;
  }

  private readonly inBatches: Submit = (request) => {
    this.batcher.submit(request);
    request.queue = this.batcher;
  };

  /** One request after the other, each cut into pieces of the size for runs. */
  private alone(): Submit {
    let last = Promise.resolve();
    return (request) => {
      last = last.then(() => (this.abandoned ? request.fail(this.abandoned) : this.runner.runAlone(request)));
    };
  }

  /** Runs the request so that a fault is found; nobody waits for what it gives. */
  private async tryOut(request: ReplyRequest, index: number, partition: Partition): Promise<void> {
    const cause = await this.runner.tryOut(request, index, partition);
    if (cause !== undefined) {
      throw new ServingLoadError(
        `The warm-up with ${request.size} rows of key "${request.batch.key}" failed: ${messageOf(cause)}`,
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
    return new ServingClosedError(`Serving "${this.options.name}" is closed and takes no more calls`);
  }
}

function askedHooks({ hooks }: StreamOptions<string>): readonly string[] | undefined {
  return hooks?.length ? hooks : undefined;
}
