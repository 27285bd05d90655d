import { type BeforeApplicationShutdown, Logger, type OnApplicationShutdown, type OnModuleInit } from '@nestjs/common';
import type { Observable } from 'rxjs';
import { InvalidServingError, isServingError, messageOf, ServingClosedError, ServingLoadError } from '../errors.js';
import { type Engine, modelsLoaded } from '../partitions/engine.js';
import type { ServingKind } from '../partitions/handler.partition.js';
import { warningsOf } from '../partitions/model-signature.js';
import type { Partition } from '../partitions/partition.js';
import { type PartitionStatus, statusOf } from '../partitions/partition-status.js';
import { TimedPartition } from '../partitions/timed.partition.js';
import { ServingStream } from '../streaming/serving-stream.js';
import type { Callbacks } from './call.js';
import type { CallOptions, StreamOptions } from './call-options.js';
import type { ServingCounters } from './counters.js';
import { callInRequest, streamInRequest } from './in-request.js';
import { Lanes } from './lanes.js';
import { ServingLine } from './line.js';
import { batching, checkOptions, checkRoom } from './option-rules.js';
import { ReplyCache, type ReplyStore } from './reply-cache.js';
import type { ResolvedServing, ServingDistribution } from './resolve-definition.js';
import { SharedCalls } from './shared-calls.js';
import { Serving, type ServingState } from './serving.js';
import type { ServingEvent } from './serving-event.js';
import { type EventOf, ServingEvents } from './serving-events.js';
import type { StreamEvent } from './stream-event.js';

/** One for all calls that have none of their own. */
const NONE: CallOptions = {};

/** A serving that owns its partitions: this is its life, and {@link ServingLine} its work. */
export class LocalServing<Input = unknown, Output = unknown>
  extends Serving<Input, Output>
  implements OnModuleInit, BeforeApplicationShutdown, OnApplicationShutdown
{
  readonly name: string;
  private readonly events = new ServingEvents();
  readonly events$ = this.events.all$;
  /** The options of its keys, as they are now. */
  private readonly lanes: Lanes;
  private readonly logger = new Logger('Serving');
  private opening: Promise<ServingLine> | undefined;
  private line: ServingLine | undefined;
  /** For `run`: partitions of its own, so that it waits for no batch; opened when first needed. */
  private inline: Promise<ServingLine> | undefined;
  private readonly runs = new Set<Promise<unknown>>();
  private overrun: Promise<true> | undefined;
  private clock: NodeJS.Timeout | undefined;
  private ending: Promise<void> | undefined;
  private isClosed = false;

  constructor(
    private readonly options: ResolvedServing,
    private readonly callbacks: Callbacks,
    private readonly engine: Engine,
    private readonly storeOf?: () => ReplyStore,
  ) {
    super();
    this.name = options.name;
    this.lanes = new Lanes(options.keys, options.otherKeys);
  }

  get state(): ServingState {
    if (this.overrun) {
      return this.isClosed ? 'closed' : 'closing';
    }
    return this.line ? 'ready' : this.opening ? 'starting' : 'stopped';
  }

  /** What other nodes may do with it. */
  get distribution(): ServingDistribution {
    return this.options.distribution;
  }

  override eventsOf<Type extends ServingEvent['type']>(type: Type): Observable<EventOf<Type>> {
    return this.events.of(type);
  }

  override queueDepths(): ReadonlyMap<string, number> {
    return new Map(this.line ? [[this.name, this.line.depth]] : []);
  }

  override counters(): ServingCounters {
    return this.events.counters.now;
  }

  override partitions(): readonly PartitionStatus[] {
    return this.line?.partitions ?? [];
  }

  override batchedRun(input: Input, options: CallOptions = NONE): Promise<Output> {
    const { line } = this;
    return line
      ? callInRequest(options, (inside) => line.batchedRun(input, inside) as Promise<Output>)
      : Promise.reject(this.notRunning());
  }

  override run(input: Input, options: CallOptions = NONE): Promise<Output> {
    return callInRequest(options, (inside) => this.runAlone(input, inside));
  }

  override stream<Hook extends string = never>(
    input: Input,
    options: StreamOptions<Hook> = {},
  ): ServingStream<StreamEvent<Output, Hook>> {
    const inside = streamInRequest(options);
    return new ServingStream((left) => this.streamFrom(input, inside, left));
  }

  override setBatchSize(batchSize: number, key?: string): void {
    const keys = this.keysFor(key);
    checkOptions(`Serving "${this.name}"`, { batchSize }, batching);
    checkRoom(`Serving "${this.name}"`, batchSize, this.options.maxQueue);
    for (const known of keys) {
      const largest = this.lanes.optionsOf(known).allowedSizes?.at(-1) ?? batchSize;
      if (largest < batchSize) {
        throw new InvalidServingError(
          `Serving "${this.name}": a batch size of ${batchSize} is more than the largest of the allowed sizes, ${largest}`,
        );
      }
    }
    this.lanes.change(keys, { batchSize, runSize: batchSize });
  }

  override setBatchTimeout(batchTimeout: number, key?: string): void {
    checkOptions(`Serving "${this.name}"`, { batchTimeout }, batching);
    this.lanes.change(this.keysFor(key), { batchTimeout });
  }

  /** Loads every partition; resolves when the serving can be called. */
  async start(): Promise<void> {
    this.refuseOnceClosed();
    const opening = (this.opening ??= this.openWarm());
    try {
      this.line = await opening;
    } catch (error) {
      // A later start may have better luck.
      this.opening = this.opening === opening ? undefined : this.opening;
      throw error;
    }
  }

  /** Takes no more calls; resolves when queued and running batches have ended as `drain` and `shutdown` say. */
  close(): Promise<void> {
    return (this.ending ??= this.end());
  }

  onModuleInit(): Promise<void> {
    return this.start();
  }

  /** Nest waits next for the clients of its servers, and some of them for rows that are queued here: the clock runs from now. */
  beforeApplicationShutdown(): void {
    const { drain, shutdown } = this.options;
    this.overrun ??= new Promise((resolve) => (this.clock = setTimeout(() => resolve(this.cutShort()), shutdown)));
    if (drain) {
      this.line?.drain();
    } else {
      this.abandon();
    }
  }

  onApplicationShutdown(): Promise<void> {
    return this.close();
  }

  private keysFor(key: string | undefined): readonly string[] {
    const { keys } = this.lanes;
    if (key !== undefined && !keys.includes(key)) {
      throw new InvalidServingError(`Serving "${this.name}" has no key "${key}"; its keys are ${keys.toSorted().join(', ')}`);
    }
    return key === undefined ? keys : [key];
  }

  private async runAlone(input: Input, options: CallOptions): Promise<Output> {
    const line = await this.inlineLine();
    const reply = line.run(input, options);
    this.runs.add(reply);
    return reply.finally(() => this.runs.delete(reply)) as Promise<Output>;
  }

  private async *streamFrom(input: Input, options: StreamOptions<string>, left: AbortSignal): AsyncGenerator<never, undefined> {
    const line = options.inline ? await this.inlineLine() : this.line;
    if (!line) {
      throw this.notRunning();
    }
    return yield* line.stream(input, options, left) as AsyncGenerator<never, undefined>;
  }

  private inlineLine(): Promise<ServingLine> {
    this.refuseOnceClosed();
    if (!this.inline) {
      const opening = this.open('inline');
      this.inline = opening;
      // A later call may have better luck.
      opening.catch(() => (this.inline = this.inline === opening ? undefined : this.inline));
    }
    return this.inline;
  }

  private async open(kind: ServingKind): Promise<ServingLine> {
    const { options, callbacks, lanes, events } = this;
    const isShared = kind === 'process';
    try {
      const shared = isShared ? this.sharedCalls() : undefined;
      const opened = await this.engine(
        kind,
        isShared ? options.partitions : options.partitions.slice(0, 1),
        isShared ? lanes.keys : [],
        options,
      );
      if (isShared) {
        warningsOf(opened.signature).forEach((warning) => this.logger.warn(`The model of serving "${this.name}" ${warning}`));
      }
      const partitions = this.timed(opened.partitions);
      partitions.forEach((partition, index) =>
        partition.onChange?.(() => this.partitionChanged(kind, index, statusOf(partition))),
      );
      return new ServingLine(
        options,
        callbacks,
        lanes,
        { ...opened, partitions },
        events,
        isShared ? lanes.keys : undefined,
        shared,
      );
    } catch (cause) {
      // Whoever hears of this is likely to end the process.
      await modelsLoaded();
      throw this.loadError(cause);
    }
  }

  private timed(partitions: readonly Partition[]): readonly Partition[] {
    const { runTimeout } = this.options;
    return runTimeout === undefined
      ? partitions
      : partitions.map((partition, index) => new TimedPartition(index, partition, runTimeout));
  }

  private partitionChanged(kind: ServingKind, partition: number, status: PartitionStatus): void {
    if (status.reason !== undefined) {
      this.logger.warn(`Serving "${this.name}"${kind === 'inline' ? ', for run()' : ''}: ${status.reason}`);
    }
    this.events.emit({ type: 'partition:change', serving: this.name, kind, partition, ...status });
  }

  /** What joins calls that ask the same, if they are to be joined. */
  private sharedCalls(): SharedCalls | undefined {
    const { name, sharing } = this.options;
    const cache = sharing?.cache && this.storeOf ? new ReplyCache(name, this.storeOf(), sharing.cache) : undefined;
    return sharing && new SharedCalls(name, sharing, cache);
  }

  private async openWarm(): Promise<ServingLine> {
    const line = await this.open('process');
    try {
      await line.warmUp();
    } catch (cause) {
      await line.close();
      throw this.loadError(cause);
    }
    return line;
  }

  private loadError(cause: unknown): Error {
    if (!isServingError(cause)) {
      return new ServingLoadError(`Serving "${this.name}" could not start: ${messageOf(cause)}`, { cause });
    }
    const owner = `Serving "${this.name}"`;
    const message = cause.message.startsWith(owner) ? cause.message : `${owner}: ${cause.message}`;
    // What is printed of an error is its stack, which has the message in it.
    return Object.assign(cause, { message, stack: cause.stack?.replace(cause.message, () => message) });
  }

  private async end(): Promise<void> {
    this.beforeApplicationShutdown();
    const late = await Promise.race([this.release(), this.overrun]).finally(() => clearTimeout(this.clock));
    if (late) {
      this.logger.warn(
        `Serving "${this.name}" did not finish its batches within ${this.options.shutdown} ms of shutdown; what was queued is answered as closed`,
      );
    }
    this.isClosed = true;
    this.events.complete();
  }

  /** Ends the lines once their batches have run; one that is still opening, once it is open. */
  private async release(): Promise<void> {
    // The one at work is told first, and at once: it takes no more calls.
    const atWork = this.line;
    const closed = atWork?.close();
    const opened = await Promise.all([this.opening?.catch(() => undefined), this.inline?.catch(() => undefined)]);
    await Promise.allSettled(this.runs);
    await Promise.all([closed, ...opened.map((line) => (line === atWork ? undefined : line?.close()))]);
  }

  private abandon(): void {
    const error = new ServingClosedError(`Serving "${this.name}" was closed before the call could run`);
    this.forEachLine((line) => line.abandon(error));
  }

  private cutShort(): true {
    const error = new ServingClosedError(`Serving "${this.name}" was closed before the call had ended`);
    this.forEachLine((line) => line.cutShort(error));
    return true;
  }

  private forEachLine(tell: (line: ServingLine) => void): void {
    if (this.line) {
      tell(this.line);
    }
    void this.inline?.then(tell, () => {});
  }

  private refuseOnceClosed(): void {
    if (this.ending) {
      throw new ServingClosedError(`Serving "${this.name}" is closed and takes no more calls`);
    }
  }

  private notRunning(): Error {
    return new ServingClosedError(
      `Serving "${this.name}" has not been started; the application starts it before it listens, elsewhere call start()`,
    );
  }
}
