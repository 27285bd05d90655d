import {
  type BeforeApplicationShutdown,
  Logger,
  type OnApplicationShutdown,
  type OnModuleInit,
} from '@nestjs/common';
import type { Observable } from 'rxjs';
import { callInRequest, streamInRequest } from '../context/caller-context.js';
import {
  InvalidInputError,
  InvalidServingError,
  ServingClosedError,
  type SessionEndedError,
} from '../errors.js';
import type { Engine } from '../partitions/engine.js';
import type { PartitionStatus } from '../partitions/partition.js';
import { ServingStream } from '../streaming/serving-stream.js';
import type { CallOptions, StreamOptions } from '../context/call-options.js';
import {
  NO_OPTIONS,
  type ResolvedCallOptions,
  resolveCallOptions,
} from '../execution/resolved-call-options.js';
import { type ServingCounters, type EventOf, EventHub } from '../events/event-hub.js';
import { checkOptions, checkRoom, checkTarget, perKey } from '../definition/option-rules.js';
import type { ReplyStore } from '../deduplication/reply-cache.js';
import { Shutdown } from './shutdown.js';
import { LoadedVersion } from './loaded-version.js';
import type { Pipeline } from './pipeline.js';
import type { OrderedSession } from '../sessions/ordered-session.js';
import type { ServingSession, SessionOptions } from '../sessions/serving-session.js';
import { Serving, type ServingState, type TargetStatus, withoutSessions } from './serving.js';
import { bootLine } from './boot-line.js';
import type { ServingSignature } from '../definition/serving-signature.js';
import type { ServingEvent } from '../events/serving-event.js';
import type { StreamEvent } from '../definition/reply.js';
import type {
  ResolvedServing,
  ServingDistribution,
  Callbacks,
} from '../definition/resolved-serving.js';

/**
 * A serving with partitions of its own. This class is its life cycle; `LoadedVersion` has its
 * partitions, and `Pipeline` is the path of its calls.
 */
export class LocalServing<Input = unknown, Output = unknown>
  extends Serving<Input, Output>
  implements OnModuleInit, BeforeApplicationShutdown, OnApplicationShutdown
{
  readonly name: string;
  readonly events$: Observable<ServingEvent>;
  private readonly logger = new Logger('Serving');
  /** The version that runs the calls. */
  private readonly active: LoadedVersion;
  private readonly shutdown: Shutdown;
  private closing: Promise<void> | undefined;
  private isClosed = false;

  constructor(
    private readonly options: ResolvedServing,
    private readonly callbacks: Callbacks,
    engine: Engine,
    storeOf?: () => ReplyStore,
    private readonly events = new EventHub(),
  ) {
    super();
    this.name = options.name;
    this.events$ = events.all$;
    this.active = new LoadedVersion({ options, callbacks, engine, storeOf, events });
    const owner = `Serving "${options.name}"`;
    this.shutdown = new Shutdown(owner, options.shutdown, this.active);
  }

  /** Milliseconds after which shutdown has answered every call. */
  get shutdownLimit(): number {
    return this.options.shutdown.timeout;
  }

  get state(): ServingState {
    if (this.shutdown.hasBegun) {
      return this.isClosed ? 'closed' : 'closing';
    }
    return this.active.isOpen ? 'ready' : this.active.isOpening ? 'starting' : 'stopped';
  }

  /** The options for calls from other nodes. */
  get distribution(): ServingDistribution {
    return this.options.distribution;
  }

  /** Whether its batches hold calls of one origin. */
  get separatesOrigins(): boolean {
    return this.options.queue.separateOrigins;
  }

  /** Whether its calls are made in sessions. */
  get hasSessions(): boolean {
    return this.options.sessions !== undefined;
  }

  /** Of a model known from its start on; of a template at once. */
  override get signature(): ServingSignature | undefined {
    return this.active.signature;
  }

  override eventsOf<Type extends ServingEvent['type']>(type: Type): Observable<EventOf<Type>> {
    return this.events.of(type);
  }

  override get queued(): number {
    return this.active.queued;
  }

  override counters(): ServingCounters {
    return this.events.counters.now;
  }

  override partitions(): readonly PartitionStatus[] {
    return this.active.partitions;
  }

  override targets(): readonly TargetStatus[] {
    return this.active.pipeline?.targets ?? [];
  }

  override batchedRun(input: Input, options: CallOptions = NO_OPTIONS): Promise<Output> {
    const { pipeline } = this.active;
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
    const { sessions } = this.active;
    if (!sessions) {
      throw this.notRunning();
    }
    return sessions.openSession(options, onEnd);
  }

  override setBatchSize(batchSize: number, key?: string): void {
    const keys = this.keysToChange(key);
    checkOptions(`Serving "${this.name}"`, { batchSize }, perKey);
    checkRoom(`Serving "${this.name}"`, batchSize, this.options.queue.maxRows);
    for (const known of keys) {
      const largest = this.active.lanes.optionsOf(known).allowedSizes?.at(-1) ?? batchSize;
      if (largest < batchSize) {
        throw new InvalidServingError(
          `Serving "${this.name}": a batch size of ${batchSize} is more than the largest of the ` +
            `allowed sizes, ${largest}`,
        );
      }
    }
    this.active.lanes.change(keys, { batchSize, runSize: batchSize });
  }

  override setBatchTimeout(batchTimeout: number, key?: string): void {
    const owner = `Serving "${this.name}"`;
    const keys = this.keysToChange(key);
    checkOptions(owner, { batchTimeout }, perKey);
    for (const known of keys) {
      checkTarget(owner, this.active.lanes.optionsOf(known).latencyTarget, { batchTimeout });
    }
    this.active.lanes.change(keys, { batchTimeout });
  }

  /** Loads every partition; resolves when the serving can be called. */
  async start(): Promise<void> {
    this.refuseOnceClosed();
    await this.active.open();
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
    this.logger.log(bootLine(this.options, this.active));
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
    const { keys } = this.active.lanes;
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
    const { inlinePipeline } = this.active;
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
    const { active } = this;
    if (!options.inline) {
      if (!active.pipeline) {
        throw this.notRunning();
      }
      return yield* active.pipeline.stream(input, options, left) as AsyncGenerator<
        never,
        undefined
      >;
    }
    const resolved = resolveCallOptions(this.callbacks, input, options, undefined, true);
    const pipeline = active.inlinePipeline ?? (await this.openInline(resolved));
    return yield* pipeline.stream(input, { ...options, resolved }, left) as AsyncGenerator<
      never,
      undefined
    >;
  }

  /** The pipeline of `run`. The call waits for it no longer than its options allow. */
  private async openInline(resolved: ResolvedCallOptions): Promise<Pipeline> {
    this.refuseOnceClosed();
    if (this.options.sessions) {
      throw this.notRunning();
    }
    return this.active.openInline(resolved);
  }

  private async end(): Promise<void> {
    await this.shutdown.complete();
    this.isClosed = true;
    this.events.complete();
  }

  private refuseOnceClosed(): void {
    if (this.shutdown.isCompleting) {
      throw new ServingClosedError(`Serving "${this.name}" is closed and takes no more calls`);
    }
  }

  private notRunning(): Error {
    if (this.active.sessions) {
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
