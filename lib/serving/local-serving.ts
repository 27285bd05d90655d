import {
  type BeforeApplicationShutdown,
  Logger,
  type OnApplicationShutdown,
  type OnModuleInit,
} from '@nestjs/common';
import type { Observable } from 'rxjs';
import { outsideCallContext, callInRequest, streamInRequest } from '../context/caller-context.js';
import {
  InvalidInputError,
  InvalidServingError,
  isServingError,
  messageOf,
  OverloadedError,
  ServingClosedError,
  ServingLoadError,
  type SessionEndedError,
} from '../errors.js';
import type { Engine, OpenedEngine } from '../partitions/engine.js';
import { modelsLoaded } from '../partitions/model-engine.js';
import type { ServingKind } from '../partitions/handler.partition.js';
import { warningsOf } from '../partitions/onnx/model-signature.js';
import { type Partition, type PartitionStatus, statusOf } from '../partitions/partition.js';
import { TimedPartition } from '../partitions/worker/timed.partition.js';
import { ServingStream } from '../streaming/serving-stream.js';
import type { CallOptions, StreamOptions } from '../context/call-options.js';
import {
  NO_OPTIONS,
  type ResolvedCallOptions,
  resolveCallOptions,
  Waits,
} from '../execution/resolved-call-options.js';
import { checkFixedBatch } from '../definition/batch-cost.js';
import { type ServingCounters, type EventOf, EventHub } from '../events/event-hub.js';
import { checkMostRows } from '../definition/most-rows.js';
import { Lanes } from '../execution/lanes.js';
import { Pipeline } from './pipeline.js';
import { checkOptions, checkRoom, checkTarget, perKey } from '../definition/option-rules.js';
import { ReplyCache, type ReplyStore } from '../deduplication/reply-cache.js';
import { SharedCalls } from '../deduplication/shared-calls.js';
import { Shutdown } from './shutdown.js';
import { LocalSessions } from './local-sessions.js';
import type { OrderedSession } from '../sessions/ordered-session.js';
import type { ServingSession, SessionOptions } from '../sessions/serving-session.js';
import { Serving, type ServingState, type TargetStatus, withoutSessions } from './serving.js';
import type { ServingProfile } from './serving-profile.js';
import { bootLine } from './boot-line.js';
import {
  type ServingSignature,
  signatureOfModel,
  signatureOfTemplate,
} from '../definition/serving-signature.js';
import type { ServingEvent } from '../events/serving-event.js';
import type { StreamEvent } from '../definition/reply.js';
import type {
  ResolvedServing,
  ServingDistribution,
  Callbacks,
} from '../definition/resolved-serving.js';

/**
 * A serving with partitions of its own. This class is its life cycle; `Pipeline` is the path of its
 * calls.
 */
export class LocalServing<Input = unknown, Output = unknown>
  extends Serving<Input, Output>
  implements OnModuleInit, BeforeApplicationShutdown, OnApplicationShutdown
{
  readonly name: string;
  readonly events$: Observable<ServingEvent>;
  /** The current options of its keys. */
  private readonly lanes: Lanes;
  private readonly logger = new Logger('Serving');
  private opening: Promise<readonly Pipeline[]> | undefined;
  private pipeline: Pipeline | undefined;
  /** In a serving with sessions, in place of `pipeline`. */
  private sessions: LocalSessions | undefined;
  /** The pipelines of `batchedRun`: one, or with sessions one for each partition. */
  private batched: readonly Pipeline[] = [];
  /**
   * The pipeline of `run`, opened when first needed: a separate one, so that its calls wait for no
   * batch.
   */
  private inline: Promise<Pipeline> | undefined;
  private inlinePipeline: Pipeline | undefined;
  /** Callers that wait for a pipeline to open. */
  private readonly waits = new Waits();
  /** All open pipelines, including those that warm up. */
  private readonly pipelines = new Set<Pipeline>();
  private readonly loading = new AbortController();
  private readonly fetching = new AbortController();
  private readonly shutdown: Shutdown;
  private closing: Promise<void> | undefined;
  /** Milliseconds that the partitions of `batchedRun` took to load. */
  private loadTime = 0;
  /** Milliseconds that their warm-up took; undefined where nothing was run. */
  private warmUpTime: number | undefined;
  private isClosed = false;
  /** That of the template, or once it is loaded that of the model. */
  private knownSignature: ServingSignature | undefined;

  constructor(
    private readonly options: ResolvedServing,
    private readonly callbacks: Callbacks,
    private readonly engine: Engine,
    private readonly storeOf?: () => ReplyStore,
    private readonly events = new EventHub(),
  ) {
    super();
    this.name = options.name;
    this.events$ = events.all$;
    this.knownSignature = options.template && signatureOfTemplate(options.template);
    this.lanes = new Lanes(options.keys, options.otherKeys, options.queue.preservesOrder);
    this.shutdown = new Shutdown(`Serving "${options.name}"`, options.shutdown, {
      drain: () => this.pipelines.forEach((pipeline) => pipeline.shutdown.drain()),
      abandon: (error) => this.abandon(error),
      end: (error) => this.endCalls(error),
      halt: () => this.pipelines.forEach((pipeline) => pipeline.shutdown.halt()),
      close: () => this.release(),
      unfinished: () => [...this.pipelines].flatMap((pipeline) => pipeline.shutdown.unfinished()),
    });
  }

  /** Milliseconds after which shutdown has answered every call. */
  get shutdownLimit(): number {
    return this.options.shutdown.timeout;
  }

  get state(): ServingState {
    if (this.shutdown.hasBegun) {
      return this.isClosed ? 'closed' : 'closing';
    }
    return this.batched.length > 0 ? 'ready' : this.opening ? 'starting' : 'stopped';
  }

  /** The options for calls from other nodes. */
  get distribution(): ServingDistribution {
    return this.options.distribution;
  }

  /** Whether its batches hold calls of one origin. */
  get separatesOrigins(): boolean {
    return this.options.queue.separateOrigins;
  }

  /** @internal The facts that a protocol states to its clients. */
  get profile(): ServingProfile {
    const { options, callbacks, lanes } = this;
    const { batchSize, batchTimeout } = lanes.optionsOf(lanes.keys[0]!);
    return {
      runner: options.runner,
      batchSize,
      batchTimeout,
      maxRowsPerCall: options.queue.maxRowsPerCall,
      sessionIdle: options.sessions?.idle,
      hasCache: options.sharing?.cache !== undefined,
      isSequence: options.sequence !== undefined,
      shapesInput: callbacks.preprocess !== undefined,
      shapesOutput:
        callbacks.postprocess !== undefined || callbacks.postprocessStream !== undefined,
    };
  }

  /** Whether its calls are made in sessions. */
  get hasSessions(): boolean {
    return this.options.sessions !== undefined;
  }

  /** Of a model known from its start on; of a template at once. */
  override get signature(): ServingSignature | undefined {
    return this.knownSignature;
  }

  override eventsOf<Type extends ServingEvent['type']>(type: Type): Observable<EventOf<Type>> {
    return this.events.of(type);
  }

  override get queued(): number {
    const queued = this.batched.reduce((rows, { depth }) => rows + depth, 0);
    return queued + (this.inlinePipeline?.depth ?? 0);
  }

  override counters(): ServingCounters {
    return this.events.counters.now;
  }

  override partitions(): readonly PartitionStatus[] {
    return this.batched.flatMap(({ partitions }) => partitions);
  }

  override targets(): readonly TargetStatus[] {
    return this.pipeline?.targets ?? [];
  }

  override batchedRun(input: Input, options: CallOptions = NO_OPTIONS): Promise<Output> {
    const { pipeline } = this;
    return pipeline
      ? callInRequest(options, (inside) => pipeline.run(input, inside) as Promise<Output>)
      : Promise.reject(this.notRunning());
  }

  override run(input: Input, options: CallOptions = NO_OPTIONS): Promise<Output> {
    return callInRequest(options, (inside) => this.runAlone(input, inside));
  }

  override stream<Hook extends string = never>(
    input: Input,
    options: StreamOptions<Hook> = {},
  ): ServingStream<StreamEvent<Output, Hook>> {
    const inside = streamInRequest(options);
    return new ServingStream((left) => this.streamFrom(input, inside, left));
  }

  override open(options: SessionOptions = {}): ServingSession<Input, Output> {
    return this.openSession(options) as ServingSession<Input, Output>;
  }

  /** @internal Opens a session, and calls back when it ends. */
  openSession(
    options: SessionOptions,
    onEnd?: (reason: SessionEndedError) => void,
  ): OrderedSession {
    if (!this.options.sessions) {
      throw withoutSessions(this.name);
    }
    this.refuseOnceClosed();
    if (!this.sessions) {
      throw this.notRunning();
    }
    return this.sessions.openSession(options, onEnd);
  }

  override setBatchSize(batchSize: number, key?: string): void {
    const keys = this.keysToChange(key);
    checkOptions(`Serving "${this.name}"`, { batchSize }, perKey);
    checkRoom(`Serving "${this.name}"`, batchSize, this.options.queue.maxRows);
    for (const known of keys) {
      const largest = this.lanes.optionsOf(known).allowedSizes?.at(-1) ?? batchSize;
      if (largest < batchSize) {
        throw new InvalidServingError(
          `Serving "${this.name}": a batch size of ${batchSize} is more than the largest of the ` +
            `allowed sizes, ${largest}`,
        );
      }
    }
    this.lanes.change(keys, { batchSize, runSize: batchSize });
  }

  override setBatchTimeout(batchTimeout: number, key?: string): void {
    const owner = `Serving "${this.name}"`;
    const keys = this.keysToChange(key);
    checkOptions(owner, { batchTimeout }, perKey);
    for (const known of keys) {
      checkTarget(owner, this.lanes.optionsOf(known).latencyTarget, { batchTimeout });
    }
    this.lanes.change(keys, { batchTimeout });
  }

  /** Loads every partition; resolves when the serving can be called. */
  async start(): Promise<void> {
    this.refuseOnceClosed();
    const opening = (this.opening ??= this.openWarm());
    try {
      const pipelines = await this.waits.for(opening);
      this.refuseOnceClosed();
      this.batched = pipelines;
      if (this.options.sessions) {
        this.sessions = new LocalSessions(this.options, this.callbacks, pipelines);
      } else {
        this.pipeline = pipelines[0];
      }
    } catch (error) {
      // A later start may succeed.
      this.opening =
        this.opening === opening && !this.shutdown.isCompleting ? undefined : this.opening;
      throw error;
    }
  }

  /**
   * Takes no more calls; resolves when queued and running batches have ended, as the option
   * `shutdown` says.
   */
  close(): Promise<void> {
    return (this.closing ??= this.end());
  }

  /** @internal Called by Nest. */
  async onModuleInit(): Promise<void> {
    await this.start();
    const { options, signature, loadTime, warmUpTime } = this;
    const partitions = this.partitions();
    this.logger.log(bootLine(options, { signature, partitions, loadTime, warmUpTime }));
  }

  /**
   * Starts the clock of shutdown: Nest waits next for the clients of its servers, of which some
   * wait for rows that are queued here.
   */
  beforeApplicationShutdown(): void {
    this.shutdown.begin();
  }

  /** @internal Called by Nest. */
  onApplicationShutdown(): Promise<void> {
    return this.close();
  }

  private keysToChange(key: string | undefined): readonly string[] {
    const { keys } = this.lanes;
    if (this.options.sequence) {
      throw new InvalidServingError(
        `Serving "${this.name}" runs sequences: the number of its places is fixed when it starts, ` +
          'and its rows wait for no others; set batchSize in its definition',
      );
    }
    if (key !== undefined && !keys.includes(key)) {
      throw new InvalidServingError(
        `Serving "${this.name}" has no key "${key}"; its keys are ${keys.toSorted().join(', ')}`,
      );
    }
    return key === undefined ? keys : [key];
  }

  private runAlone(input: Input, options: CallOptions): Promise<Output> {
    const { inlinePipeline } = this;
    return (
      inlinePipeline ? inlinePipeline.run(input, options) : this.runOnceOpen(input, options)
    ) as Promise<Output>;
  }

  /** Calls once the pipeline of `run` is open. The timeout of the call runs meanwhile. */
  private async runOnceOpen(input: Input, options: CallOptions): Promise<unknown> {
    const { signal } = options;
    signal?.throwIfAborted();
    const resolved = resolveCallOptions(this.callbacks, input, options, this.options.timeout);
    const pipeline = await this.openInline(resolved);
    return pipeline.run(input, { ...options, signal, resolved });
  }

  private async *streamFrom(
    input: Input,
    options: StreamOptions<string>,
    left: AbortSignal,
  ): AsyncGenerator<never, undefined> {
    if (!options.inline) {
      if (!this.pipeline) {
        throw this.notRunning();
      }
      return yield* this.pipeline.stream(input, options, left) as AsyncGenerator<never, undefined>;
    }
    const resolved = resolveCallOptions(this.callbacks, input, options, undefined, true);
    const pipeline = this.inlinePipeline ?? (await this.openInline(resolved));
    return yield* pipeline.stream(input, { ...options, resolved }, left) as AsyncGenerator<
      never,
      undefined
    >;
  }

  /** The pipeline of `run`. The call waits for it no longer than its options allow. */
  private async openInline(resolved: ResolvedCallOptions): Promise<Pipeline> {
    this.refuseOnceClosed();
    const { name, queue, sessions } = this.options;
    if (sessions) {
      throw this.notRunning();
    }
    if (this.waits.size >= queue.maxRows) {
      throw new OverloadedError(
        `Serving "${name}" loads the session for run(), and ${queue.maxRows} calls wait for it; ` +
          'call again later',
      );
    }
    if (!this.inline) {
      const opening = outsideCallContext(async () => {
        const [pipeline] = await this.openPipelines('inline');
        return pipeline!;
      });
      this.inline = opening;
      opening.then(
        (pipeline) => (this.inlinePipeline = pipeline),
        // A later call may succeed.
        () => (this.inline = this.inline === opening ? undefined : this.inline),
      );
    }
    return this.waits.for(this.inline, resolved);
  }

  /** One pipeline, or with sessions one for each partition. */
  private async openPipelines(kind: ServingKind): Promise<readonly Pipeline[]> {
    const { options, callbacks, lanes, events } = this;
    const isShared = kind === 'batched';
    const begin = performance.now();
    try {
      const shared = isShared ? this.sharedCalls() : undefined;
      const opened = await this.engine(
        kind,
        isShared ? options.partitions : options.partitions.slice(0, 1),
        isShared ? lanes.keys : [],
        options.recovery,
        this.loading.signal,
        {
          log: (line) => this.logger.log(`Serving "${this.name}" ${line}`),
          warn: (line) => this.logger.warn(`Serving "${this.name}" ${line}`),
          signal: this.fetching.signal,
        },
      );
      if (opened.signature) {
        await this.checkModel(opened);
        lanes.fit(opened.signature);
        this.knownSignature = signatureOfModel(opened.signature);
      }
      if (isShared) {
        this.warn(opened);
        this.loadTime = performance.now() - begin;
      }
      const partitions = this.timed(opened.partitions);
      partitions.forEach((partition, index) => this.watch(kind, partition, index));
      const all = { ...opened, partitions };
      const pipelines = (options.sessions ? partitions : [undefined]).map((own, index) => {
        const only = own && index;
        return new Pipeline(options, callbacks, lanes, all, events, kind, shared, only);
      });
      for (const pipeline of pipelines) {
        this.pipelines.add(pipeline);
        if (this.shutdown.hasBegun) {
          pipeline.shutdown.drain();
        }
      }
      return pipelines;
    } catch (cause) {
      // The caller is likely to end the process when it gets this error.
      await modelsLoaded();
      throw this.loadError(cause);
    }
  }

  private async checkModel({ signature, partitions }: OpenedEngine): Promise<void> {
    try {
      checkFixedBatch(this.options, signature!);
      checkMostRows(this.options, signature!);
    } catch (error) {
      await Promise.all(partitions.map((partition) => partition.close()));
      throw error;
    }
  }

  private warn({ signature, providers = [] }: OpenedEngine): void {
    const missing = providers.flatMap((each) =>
      (each?.missing ?? []).map((provider) => `runs on ${each!.inUse}, without ${provider}`),
    );
    for (const warning of [...warningsOf(signature), ...new Set(missing)]) {
      this.logger.warn(`The model of serving "${this.name}" ${warning}`);
    }
  }

  private timed(partitions: readonly Partition[]): readonly Partition[] {
    const { runTimeout } = this.options.recovery;
    return runTimeout === undefined
      ? partitions
      : partitions.map((partition, index) => new TimedPartition(index, partition, runTimeout));
  }

  private watch(kind: ServingKind, partition: Partition, index: number): void {
    let { provider: before } = statusOf(partition);
    partition.onChange?.(() => {
      const status = statusOf(partition);
      const { provider = before } = status;
      if (provider !== before) {
        this.logger.warn(
          `Serving "${this.name}": Partition ${index} now runs on ${provider}, and before on ` +
            `${before}`,
        );
        before = provider;
      }
      this.partitionChanged(kind, index, status);
    });
  }

  private partitionChanged(kind: ServingKind, partition: number, status: PartitionStatus): void {
    if (status.reason !== undefined) {
      this.logger.warn(
        `Serving "${this.name}"${kind === 'inline' ? ', for run()' : ''}: ${status.reason}`,
      );
    }
    this.events.emit({ type: 'partition:change', serving: this.name, kind, partition, ...status });
  }

  /** Joins calls with the same input, if the serving wants that. */
  private sharedCalls(): SharedCalls | undefined {
    const { name, sharing } = this.options;
    const cache =
      sharing?.cache && this.storeOf
        ? new ReplyCache(name, this.storeOf(), sharing.cache)
        : undefined;
    return sharing && new SharedCalls(name, sharing, cache);
  }

  private async openWarm(): Promise<readonly Pipeline[]> {
    const pipelines = await this.openPipelines('batched');
    try {
      const begin = performance.now();
      // Any of them warms up all partitions.
      const { cold, batches } = await pipelines[0]!.warmUp();
      this.warmUpTime = batches > 0 ? performance.now() - begin : undefined;
      if (cold.length > 0) {
        this.logger.warn(
          `Serving "${this.name}" cannot run its allowed sizes (of key ${cold.join(', ')}) ` +
            'before it is ready, since it has no ' +
            'example of their rows, so that the first callers wait for what each size compiles; ' +
            'give example inputs: warmUp: [...]',
        );
      }
    } catch (cause) {
      await Promise.all(pipelines.map((pipeline) => pipeline.shutdown.close()));
      pipelines.forEach((pipeline) => this.pipelines.delete(pipeline));
      throw this.loadError(cause);
    }
    return pipelines;
  }

  private loadError(cause: unknown): Error {
    if (!isServingError(cause)) {
      return new ServingLoadError(`Serving "${this.name}" could not start: ${messageOf(cause)}`, {
        cause,
      });
    }
    const owner = `Serving "${this.name}"`;
    const message = cause.message.startsWith(owner) ? cause.message : `${owner}: ${cause.message}`;
    // Loggers print the stack of an error, which includes the message.
    return Object.assign(cause, {
      message,
      stack: cause.stack?.replace(cause.message, () => message),
    });
  }

  private async end(): Promise<void> {
    await this.shutdown.complete();
    this.isClosed = true;
    this.events.complete();
  }

  /**
   * Closes the pipelines once their batches have run; one that is still opening, once it is open.
   */
  private async release(): Promise<void> {
    this.fetching.abort(
      new ServingClosedError(`Serving "${this.name}" was closed before it had its model`),
    );
    // Closes the open pipelines at once, so that they take no more calls.
    const closed = [...this.pipelines].map((pipeline) => pipeline.shutdown.close());
    await Promise.all([this.opening?.catch(() => undefined), this.inline?.catch(() => undefined)]);
    await Promise.all([
      ...closed,
      ...[...this.pipelines].map((pipeline) => pipeline.shutdown.close()),
    ]);
    this.sessions?.close();
  }

  private abandon(error: Error): void {
    this.waits.end(error);
    this.pipelines.forEach((pipeline) => pipeline.shutdown.abandon(error));
  }

  private endCalls(error: Error): boolean {
    const isWaitedFor = this.waits.size > 0;
    this.waits.end(error);
    this.loading.abort(error);
    return [...this.pipelines].reduce(
      (had, pipeline) => pipeline.shutdown.end(error) || had,
      isWaitedFor,
    );
  }

  private refuseOnceClosed(): void {
    if (this.shutdown.isCompleting) {
      throw new ServingClosedError(`Serving "${this.name}" is closed and takes no more calls`);
    }
  }

  private notRunning(): Error {
    if (this.sessions) {
      return new InvalidInputError(
        `Serving "${this.name}" keeps a state for each session; make the call in one: ` +
          'serving.open().run(input)',
      );
    }
    return new ServingClosedError(
      `Serving "${this.name}" has not been started; the application starts it before it listens, ` +
        'elsewhere call start()',
    );
  }
}
