import { merge, type Observable } from 'rxjs';
import {
  callInRequest,
  type CallOptions,
  NO_OPTIONS,
  requireOptions,
  streamInRequest,
  type StreamOptions,
} from '../context/call-context.js';
import {
  closedError,
  InvalidServingError,
  ServingClosedError,
  ServingUnavailableError,
  type SessionEndedError,
  UnknownVersionError,
} from '../errors.js';
import { formatValue } from '../format.js';
import { log } from '../log.js';
import type { PartitionStatus } from '../partitions/partition.js';
import { ServingStream } from '../streaming/serving-stream.js';
import {
  INTERNAL,
  type InternalCallOptions,
  resolveCallOptions,
} from '../execution/resolved-call-options.js';
import type { ServingParts } from './feature.js';
import { CallRecorder, countEnd, countRefusal } from '../events/call-recorder.js';
import { EventHub, type EventOf, type ServingCounters } from '../events/event-hub.js';
import { Shutdown } from '../execution/shutdown.js';
import { bootLine, LoadedVersion } from '../versions/loaded-version.js';
import { Reloads } from '../versions/reloads.js';
import type { ReloadOptions, ServingVersion, VersionStatus } from '../versions/serving-version.js';
import type { VersionPlan } from '../versions/version-loader.js';
import { Versions } from '../versions/versions.js';
import type { OpenSession, ServingSession, SessionOptions } from '../execution/kept-states.js';
import type { Pipeline, TargetStatus } from '../execution/pipeline.js';
import {
  type KeyStatus,
  type LocalPart,
  Serving,
  type ServingHold,
  type ServingProfile,
  type ServingState,
  withoutSessions,
} from './serving.js';
import type { ServingSignature } from '../partitions/model/model-signature.js';
import type { CallMode, ServingEvent } from '../events/serving-event.js';
import type { StreamedOutput, StreamEvent } from '../definition/reply.js';
import type {
  Callbacks,
  KeyOptions,
  ResolvedServing,
  ServingDistribution,
} from '../definition/resolved-serving.js';
import { checkTogether, combinationsOfKeys } from '../definition/combinations.js';
import { checkOptions, perKey } from '../definition/option-rules.js';

/**
 * A serving with its own partitions: its handle and life cycle. `Versions` finds the
 * `LoadedVersion` for a call, and `Pipeline` is the call's path there.
 */
export class LocalServing<
  Input = unknown,
  Output = unknown,
  Streamed = StreamedOutput<Output>,
> extends Serving<Input, Output, Streamed> {
  readonly name: string;
  readonly events$: Observable<ServingEvent>;
  private readonly options: ResolvedServing;
  private readonly loaded: Versions;
  private readonly reloads: Reloads;
  private readonly keySettings: KeySettings;
  private readonly shutdown: Shutdown;
  /** @internal True if ServingModule closes it, after all that may call it. */
  closesLast = false;
  private hold: ServingHold | undefined;
  private closing: Promise<void> | undefined;
  private isClosed = false;

  constructor(
    plan: VersionPlan,
    private readonly callbacks: Callbacks,
    private readonly parts: ServingParts = {},
    private readonly events = new EventHub(undefined, undefined, plan.options.continuous?.reports),
  ) {
    super();
    const { options } = plan;
    this.options = options;
    this.name = options.name;
    this.events$ = events.all$;
    this.keySettings = new KeySettings(options, (keys, changed) => {
      for (const { lanes } of this.loaded) {
        lanes.change(keys, changed);
      }
    });
    this.loaded = new Versions(callbacks, this.versionOf(plan));
    this.reloads = new Reloads(
      this.name,
      this.loaded,
      (later, isHidden) => this.versionOf(later, this.loaded.active, isHidden),
      parts.policies ?? {},
      parts.rollout,
    );
    this.shutdown = new Shutdown(`Serving "${options.name}"`, options.shutdown, this.loaded);
  }

  /** @internal */
  override get local(): LocalPart {
    return this;
  }

  /** @internal */
  get shutdownLimit(): number {
    return this.options.shutdown.timeout;
  }

  get state(): ServingState {
    if (this.shutdown.hasBegun) {
      return this.isClosed ? 'closed' : 'closing';
    }
    const { active } = this.loaded;
    return active.isOpen ? 'ready' : active.isOpening ? 'starting' : 'stopped';
  }

  override get held(): ServingHold | undefined {
    return this.hold;
  }

  /** @internal */
  get distribution(): ServingDistribution {
    return this.options.distribution;
  }

  /** @internal */
  get versionLabels(): readonly string[] {
    const { labels, active } = this.loaded;
    return [...labels.filter((label) => label !== active.label), active.label];
  }

  /** @internal */
  get profile(): ServingProfile {
    const { options, callbacks } = this;
    const { lanes } = this.loaded.active;
    const { batchSize, batchTimeout } = lanes.optionsOf(lanes.keys[0]!);
    return {
      runner: options.runner,
      batchSize,
      batchTimeout,
      maxRowsPerCall: options.queue.maxRowsPerCall,
      stateIdle: options.states?.idle,
      separatesOrigins: options.queue.separateOrigins,
      hasCache: this.parts.sharing?.keepsAnswers ?? false,
      isContinuous: options.continuous !== undefined,
      shapesInput: callbacks.preprocess !== undefined,
      shapesOutput:
        callbacks.postprocess !== undefined || callbacks.postprocessStream !== undefined,
    };
  }

  override get signature(): ServingSignature | undefined {
    return this.loaded.active.signature;
  }

  /** @internal */
  get changes$(): Observable<unknown> {
    return merge(this.events.of('partition:change'), this.loaded.chosen$);
  }

  override eventsOf<Type extends ServingEvent['type']>(type: Type): Observable<EventOf<Type>> {
    return this.events.of(type);
  }

  override get queued(): number {
    return this.loaded.queued;
  }

  override counters(): ServingCounters {
    return this.events.totals;
  }

  override partitions(): readonly PartitionStatus[] {
    return this.loaded.active.partitions;
  }

  override targets(): readonly TargetStatus[] {
    return this.loaded.active.pipeline?.targets ?? [];
  }

  override batchedRun(input: Input, options: CallOptions = NO_OPTIONS): Promise<Output> {
    const { active, witness } = this.loaded;
    const version = this.chosenFor(input, options);
    const pipeline = version?.pipeline;
    if (!pipeline) {
      return Promise.reject(this.refused('batched', options));
    }
    const seen =
      witness && version === active ? witness.place!.sees!(input, options, version) : undefined;
    const reply = callInRequest(
      options,
      (inside) => pipeline.run(input, inside) as Promise<Output>,
    );
    seen?.(reply);
    return reply;
  }

  override run(input: Input, options: CallOptions = NO_OPTIONS): Promise<Output> {
    const version = this.chosenFor(input, options);
    return version
      ? callInRequest(options, (inside) => this.runAlone(version, input, inside))
      : Promise.reject(this.refused('inline', options));
  }

  override stream<Hook extends string = never>(
    input: Input,
    options: StreamOptions<Hook> = {},
  ): ServingStream<StreamEvent<Streamed, Hook>> {
    const inside = streamInRequest(options);
    return new ServingStream((left) => this.streamFrom(input, inside, left));
  }

  override open(options: SessionOptions = {}): ServingSession<Input, Output> {
    return this.openSession(options) as ServingSession<Input, Output>;
  }

  /** @internal */
  versionFor(input: unknown, options: CallOptions): string | undefined {
    return this.chosenFor(input, options)?.label;
  }

  /** @internal */
  openSession(
    options: SessionOptions,
    onEnd?: (reason: SessionEndedError) => void,
    needsFirst?: boolean,
  ): OpenSession {
    if (!this.options.states) {
      throw withoutSessions(this.name);
    }
    this.refuseOnceClosed();
    const states = this.chosenFor(undefined, options)?.states;
    if (!states) {
      throw this.notRunning(options);
    }
    return states.openSession(options, onEnd, needsFirst);
  }

  override async reload(options: ReloadOptions = {}): Promise<ServingVersion> {
    if (this.state !== 'ready') {
      throw this.shutdown.hasBegun ? closedError(this.name) : this.notRunning(NO_OPTIONS);
    }
    return this.reloads.reload(options);
  }

  override versions(): readonly VersionStatus[] {
    return this.loaded.status;
  }

  override version(label: string): ServingVersion {
    const version = this.loaded.find(label);
    if (!version) {
      throw this.unknownVersion(label);
    }
    return this.reloads.handleOf(version);
  }

  override pause(): void {
    this.holdAs('paused');
  }

  override drain(): void {
    this.holdAs('drained');
  }

  override resume(): void {
    this.holdAs(undefined);
  }

  override keys(): readonly KeyStatus[] {
    return this.keySettings.status;
  }

  override setBatchSize(batchSize: number, key?: string): void {
    this.keySettings.set({ batchSize }, key);
  }

  override setBatchTimeout(batchTimeout: number, key?: string): void {
    this.keySettings.set({ batchTimeout }, key);
  }

  /** Loads all partitions; resolves when the serving can be called. */
  async start(): Promise<void> {
    this.refuseOnceClosed();
    await this.loaded.active.open();
    await this.reloads.begin();
  }

  /** @internal Runs further examples, like the option `warmUp`. */
  async warmUp(inputs: readonly Input[]): Promise<void> {
    await this.loaded.active.warmUp(inputs);
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
    log.log(bootLine(this.options, this.loaded.active));
  }

  /**
   * Starts the shutdown clock: Nest waits next for its servers' clients, and some wait for rows
   * that are queued here.
   */
  beforeApplicationShutdown(): void {
    this.reloads.close();
    // Paused rows are answered, too.
    this.apply(undefined);
    this.shutdown.begin();
  }

  /** @internal Called by Nest. */
  async onApplicationShutdown(): Promise<void> {
    if (!this.closesLast) {
      await this.close();
    }
  }

  private holdAs(hold: ServingHold | undefined): void {
    if (this.shutdown.hasBegun) {
      throw closedError(this.name);
    }
    this.apply(hold);
    log.log(`Serving "${this.name}" was ${hold ?? 'resumed'} by hand`);
  }

  private apply(hold: ServingHold | undefined): void {
    this.hold = hold;
    this.loaded.refuse(hold === 'drained');
    for (const version of this.loaded) {
      version.pause(hold === 'paused');
    }
  }

  private chosenFor(input: unknown, options: CallOptions): LoadedVersion | undefined {
    if (options !== NO_OPTIONS) {
      requireOptions(options);
    }
    const { only } = this.loaded;
    return only && options.version === undefined ? only : this.loaded.for(input, options);
  }

  private versionOf(
    { options, ...plan }: VersionPlan,
    replaces?: LoadedVersion,
    isHidden = false,
  ): LoadedVersion {
    const { callbacks, parts, keySettings } = this;
    // Not the version, which would keep all earlier ones in memory.
    const calls = replaces && { label: replaces.label, signature: replaces.signature };
    const events = isHidden
      ? this.events.hiddenChildOf(options.version)
      : this.events.childOf(options.version);
    return new LoadedVersion({
      ...plan,
      ...parts,
      options: { ...options, keys: keySettings.current },
      callbacks,
      events,
      replaces: calls,
      isHidden,
      isPaused: this.hold === 'paused',
    });
  }

  private runAlone(version: LoadedVersion, input: Input, options: CallOptions): Promise<Output> {
    const run = ({ pipeline, inside }: OpenedFor): Promise<Output> =>
      pipeline.run(input, inside, true) as Promise<Output>;
    return version.pipeline
      ? run({ pipeline: version.pipeline, inside: options })
      : this.openFor('inline', version, input, options).then(run);
  }

  private async *streamFrom(
    input: Input,
    options: StreamOptions<string>,
    left: AbortSignal,
  ): AsyncGenerator<never, undefined> {
    const version = this.chosenFor(input, options);
    if (!version || (!options.inline && !version.pipeline)) {
      throw this.refused('stream', options);
    }
    const { pipeline, inside } = version.pipeline
      ? { pipeline: version.pipeline, inside: options }
      : await this.openFor('stream', version, input, options);
    return yield* pipeline.stream(input, inside, left) as AsyncGenerator<never, undefined>;
  }

  /**
   * Opens a version that hasn't started. Waits no longer than the call's options allow, and counts
   * a call that fails meanwhile.
   */
  private async openFor(
    mode: 'inline' | 'stream',
    version: LoadedVersion,
    input: Input,
    options: StreamOptions<string> & InternalCallOptions,
  ): Promise<OpenedFor> {
    const { events } = version;
    const { signal } = options;
    const isStream = mode === 'stream';
    const recorder = CallRecorder.start(events, this.name, mode, signal);
    try {
      const patience = isStream ? undefined : this.options.timeout;
      const resolved = resolveCallOptions(this.callbacks, input, options, patience, isStream);
      signal?.throwIfAborted();
      this.refuseOnceClosed();
      const { states } = this.options;
      if (states) {
        throw states.outside(this.name);
      }
      const pipeline = await version.openEarly(resolved);
      const own = { ...options[INTERNAL], resolved, recorder };
      return { pipeline, inside: { ...options, signal, [INTERNAL]: own } };
    } catch (error) {
      countEnd(events, recorder, { error }, signal);
      throw error;
    }
  }

  private async end(): Promise<void> {
    this.reloads.close();
    this.apply(undefined);
    await this.shutdown.complete();
    this.isClosed = true;
    this.events.complete();
  }

  private refuseOnceClosed(): void {
    if (this.shutdown.isCompleting) {
      throw closedError(this.name);
    }
  }

  /** Counts the call as refused; returns why no version runs it. */
  private refused(mode: CallMode, options: CallOptions): Error {
    const error = this.notRunning(options);
    countRefusal(this.events, this.name, mode, error, options.signal);
    return error;
  }

  private notRunning({ version }: CallOptions): Error {
    const { labels } = this.loaded;
    if (this.hold === 'drained') {
      return new ServingUnavailableError(
        `Serving "${this.name}" was drained by hand and takes no calls until it is resumed; call ` +
          'again later',
      );
    }
    if (version !== undefined && !labels.includes(version)) {
      return this.unknownVersion(version);
    }
    return new ServingClosedError(
      `Serving "${this.name}" has not been started; the application starts it before it listens, ` +
        'in a test call app.init(), elsewhere start()',
    );
  }

  private unknownVersion(version: string): Error {
    const { labels } = this.loaded;
    return new UnknownVersionError(
      `Serving "${this.name}" has no version ${formatValue(version)}; it has ` +
        labels.map((label) => formatValue(label)).join(', '),
    );
  }
}

interface OpenedFor {
  readonly pipeline: Pipeline;
  readonly inside: InternalCallOptions;
}

/** Options by key, in all versions; they may change while the serving runs. */
export class KeySettings {
  private options: ResolvedServing['keys'];

  constructor(
    private readonly serving: ResolvedServing,
    private readonly apply: (keys: readonly string[], options: Partial<KeyOptions>) => void,
  ) {
    this.options = serving.keys;
  }

  get current(): ResolvedServing['keys'] {
    return this.options;
  }

  get status(): readonly KeyStatus[] {
    return [...this.options].map(([key, { batchSize, batchTimeout }]) => ({
      key,
      batchSize,
      batchTimeout,
    }));
  }

  /**
   * Changes these options of one key, or of all keys.
   *
   * @throws InvalidServingError for an invalid value or an unknown key
   */
  set(changes: Partial<Pick<KeyOptions, 'batchSize' | 'batchTimeout'>>, key?: string): void {
    const keys = this.keysOf(key);
    const [missing] = Object.entries(changes).find(([, value]) => value === undefined) ?? [];
    if (missing !== undefined) {
      throw new InvalidServingError(
        `${this.owner}: option "${missing}" is undefined; give its new value`,
      );
    }
    checkOptions(this.owner, changes, perKey);
    // Allowed sizes and targets are the same for all keys.
    const [any] = this.options.values();
    const facts = { ...any!, ...changes, queueRows: this.serving.queue.maxRows };
    checkTogether(this.owner, facts, combinationsOfKeys);
    const { batchSize } = changes;
    const options = batchSize === undefined ? changes : { ...changes, runSize: batchSize };
    const changed = keys.map((each) => [each, { ...this.options.get(each)!, ...options }] as const);
    this.options = new Map([...this.options, ...changed]);
    this.apply(keys, options);
  }

  private get owner(): string {
    return `Serving "${this.serving.name}"`;
  }

  private keysOf(key: string | undefined): readonly string[] {
    const keys = [...this.options.keys()];
    const { continuous } = this.serving;
    if (continuous) {
      throw new InvalidServingError(
        `${this.owner} runs ${continuous.kind}: how many run at a time is fixed when it starts, ` +
          'and its rows wait for no others; set batchSize in its definition',
      );
    }
    if (key !== undefined && !keys.includes(key)) {
      throw new InvalidServingError(
        `${this.owner} has no key ${formatValue(key)}; its keys are ${keys.toSorted().join(', ')}`,
      );
    }
    return key === undefined ? keys : [key];
  }
}
