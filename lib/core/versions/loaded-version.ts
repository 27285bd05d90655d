import { setImmediate as nextTurn } from 'node:timers/promises';
import { outsideCallContext } from '../context/call-context.js';
import type { ResolvedServing } from '../definition/resolved-serving.js';
import { describeTensors, signatureFor } from '../definition/serving-signature.js';
import type { ServingSignature } from '../partitions/model/model-signature.js';
import type { EventHub } from '../events/event-hub.js';
import { closedError, OverloadedError } from '../errors.js';
import { Lanes } from '../execution/lanes.js';
import { type ResolvedCallOptions, Waits } from '../execution/resolved-call-options.js';
import type { ServingKind } from '../partitions/engine.js';
import { whileLoading } from '../partitions/engine.js';
import type { PartitionStatus } from '../partitions/partition.js';
import type { OpenStates } from '../execution/kept-states.js';
import type { Pipeline } from '../execution/pipeline.js';
import type { VersionRole, VersionStatus } from './serving-version.js';
import type { VersionPlace } from './version-policy.js';
import type { Closable, Rung } from '../execution/shutdown.js';
import { VersionLoader, type VersionParts, type VersionPlan } from './version-loader.js';
import { countOf, formatValue } from '../format.js';

/** One version of a serving: its partitions, and the pipeline that runs on them. */
export class LoadedVersion implements Closable {
  readonly label: string;
  role: VersionRole = 'loading';
  /** Its share of calls while it has a place. */
  share = 0;
  /** Undefined for the active version, and while it loads or drains. */
  place: VersionPlace | undefined;
  readonly lanes: Lanes;
  /** Undefined until it has started. */
  pipeline: Pipeline | undefined;
  /** Undefined if calls have no state. */
  states: OpenStates | undefined;
  /** The template's signature; once the model is loaded, the model's. */
  signature: ServingSignature | undefined;
  /** Words for where its partitions run; undefined for functions of the application. */
  where: string | undefined;
  /** Milliseconds that its partitions took to load. */
  loadTime = 0;
  /** Milliseconds that their warm-up took; undefined if it ran nothing. */
  warmUpTime: number | undefined;
  /** Identifies the model, as it was loaded; for the serving's rollout. */
  mark: unknown;
  private opening: Promise<Pipeline> | undefined;
  /** Runs `run` until the version starts, on one partition. */
  private early: Promise<Pipeline> | undefined;
  /** Callers that wait for a pipeline to open. */
  private readonly waits = new Waits();
  private readonly pipelines = new Set<Pipeline>();
  private readonly loader: VersionLoader;
  /** Called when its calls or sessions may have ended. */
  private changed: (() => void) | undefined;
  private readonly notify = (): void => this.changed?.();
  private isPaused: boolean;
  private isEnding = false;
  private isClosed = false;

  constructor(private readonly parts: VersionParts) {
    const { version, keys, otherKeys, queue } = parts.options;
    this.label = version;
    this.isPaused = parts.isPaused ?? false;
    this.signature = signatureFor(parts.options, undefined);
    this.lanes = new Lanes(keys, otherKeys, queue.preservesOrder);
    this.loader = new VersionLoader(parts, this.lanes);
  }

  get options(): ResolvedServing {
    return this.parts.options;
  }

  get events(): EventHub {
    return this.parts.events;
  }

  get currentShare(): number | undefined {
    return this.place && this.share;
  }

  get model(): VersionPlan['model'] {
    return this.parts.model;
  }

  get isHidden(): boolean {
    return this.role !== 'active' && this.parts.isHidden === true;
  }

  get next(): VersionPlan['next'] {
    return this.parts.next;
  }

  get isOpen(): boolean {
    return this.pipeline !== undefined;
  }

  get isOpening(): boolean {
    return this.opening !== undefined;
  }

  get isUp(): boolean {
    return this.partitions.some(({ state }) => state === 'up');
  }

  get queued(): number {
    return [...this.pipelines].reduce((rows, { depth }) => rows + depth, 0);
  }

  get partitions(): readonly PartitionStatus[] {
    return this.pipeline?.partitions ?? [];
  }

  get status(): VersionStatus {
    const { label: version, role, currentShare, place, queued, partitions } = this;
    const counters = this.parts.events.counters.now;
    return {
      version,
      role,
      ...(currentShare !== undefined && { share: currentShare }),
      ...place?.status,
      counters,
      queued,
      partitions,
    };
  }

  async open(): Promise<void> {
    this.refuseOnceClosed();
    const opening = (this.opening ??= this.openWarm());
    try {
      const pipeline = await this.waits.for(opening);
      this.refuseOnceClosed();
      if (this.pipeline) {
        return;
      }
      const { options, callbacks, states } = this.parts;
      this.pipeline = pipeline;
      this.states = states?.open({ options, callbacks, pipeline, onEnd: this.notify });
    } catch (error) {
      // A later start may succeed, unless the end waits for this one.
      this.opening = this.opening === opening && !this.isEnding ? undefined : this.opening;
      throw error;
    }
  }

  async warmUp(inputs: readonly unknown[]): Promise<void> {
    await this.open();
    await this.loader.warmUp(this.pipeline!, inputs).catch((cause: unknown) => {
      throw this.loader.errorOf(cause);
    });
  }

  /**
   * Opens it for `run`: with one partition, unless it is starting. The call waits no longer than
   * its options allow.
   */
  async openEarly(resolved: ResolvedCallOptions): Promise<Pipeline> {
    this.refuseOnceClosed();
    const { name, queue } = this.parts.options;
    if (this.waits.size >= queue.maxRows) {
      throw new OverloadedError(
        `Serving "${name}" is still loading, and ${queue.maxRows} calls wait for it; call again ` +
          'later',
      );
    }
    if (!this.opening && !this.early) {
      const opening = outsideCallContext(() => this.openInlinePipeline());
      this.early = opening;
      opening.catch(() => (this.early = this.early === opening ? undefined : this.early));
    }
    return this.waits.for((this.opening ?? this.early)!, resolved);
  }

  /** Resolves when its calls and sessions have ended, or it is closed. */
  async idle(): Promise<void> {
    while (!this.isClosed && !this.isIdle) {
      this.pipelines.forEach((pipeline) => (pipeline.onIdle = this.notify));
      await new Promise<void>((resolve) => (this.changed = resolve));
    }
  }

  pause(isPaused: boolean): void {
    this.isPaused = isPaused;
    this.pipelines.forEach((pipeline) => pipeline.pause(isPaused));
  }

  drain(): void {
    this.isEnding = true;
    this.pipelines.forEach((pipeline) => pipeline.drain());
  }

  stop(rung: Rung, error: Error): boolean {
    const isWaitedFor = this.waits.size > 0;
    this.isEnding = true;
    this.waits.end(error);
    if (rung === 'end') {
      this.loader.halt(error);
    }
    const hadCalls = [...this.pipelines].map((pipeline) => pipeline.stop(rung, error));
    return isWaitedFor || hadCalls.includes(true);
  }

  /** Pipelines close once their batches have run; one that is still opening, once it is open. */
  async close(): Promise<void> {
    this.isEnding = true;
    this.isClosed = true;
    this.notify();
    this.loader.stopFetching();
    // Closes the open pipelines now, so they take no more calls.
    const closed = [...this.pipelines].map((pipeline) => pipeline.close());
    await Promise.all([this.opening?.catch(() => undefined), this.early?.catch(() => undefined)]);
    await Promise.all([...closed, ...[...this.pipelines].map((pipeline) => pipeline.close())]);
    this.states?.close();
  }

  unfinished(): readonly string[] {
    return [...this.pipelines].flatMap((pipeline) => pipeline.unfinished());
  }

  private get isIdle(): boolean {
    const states = this.states?.size ?? 0;
    return states === 0 && [...this.pipelines].every(({ isIdle }) => isIdle);
  }

  private async openWarm(): Promise<Pipeline> {
    await this.endEarly();
    const pipeline = await this.openPipeline('batched');
    await this.tryOut(pipeline, async () => {
      this.warmUpTime = await this.loader.warmUp(pipeline);
    });
    return pipeline;
  }

  private async openInlinePipeline(): Promise<Pipeline> {
    const pipeline = await this.openPipeline('inline');
    await this.tryOut(pipeline, () => this.loader.checkRows(pipeline));
    return pipeline;
  }

  /** Closes the pipeline of `run`, so that the model is loaded once. */
  private async endEarly(): Promise<void> {
    const early = await this.early?.catch(() => undefined);
    if (early) {
      // A call that waited for it enters it within a turn of the event loop.
      await nextTurn();
      await early.close();
      this.early = undefined;
      this.pipelines.delete(early);
    }
  }

  /** Closes the pipeline if its first runs fail. */
  private async tryOut(pipeline: Pipeline, runs: () => Promise<void>): Promise<void> {
    try {
      await whileLoading(runs());
    } catch (cause) {
      await pipeline.close();
      this.pipelines.delete(pipeline);
      throw await this.loader.failed(cause);
    }
  }

  private async openPipeline(kind: ServingKind): Promise<Pipeline> {
    const begin = performance.now();
    if (kind === 'batched') {
      // A change while it loads is a change after it.
      this.mark = await this.parts.rollout?.markOf(this.model);
    }
    const pipeline = await this.loader.open(kind);
    this.signature = pipeline.signature;
    this.where = pipeline.where;
    this.loadTime = kind === 'batched' ? performance.now() - begin : this.loadTime;
    this.pipelines.add(pipeline);
    pipeline.pause(this.isPaused);
    if (this.isEnding) {
      pipeline.drain();
    }
    return pipeline;
  }

  private refuseOnceClosed(): void {
    if (this.isClosed) {
      throw closedError(this.parts.options.name);
    }
  }
}

export interface Started {
  readonly signature: ServingSignature | undefined;
  readonly partitions: readonly PartitionStatus[];
  readonly where: string | undefined;
  readonly loadTime: number;
  readonly warmUpTime: number | undefined;
}

export function bootLine(
  { name, runner }: ResolvedServing,
  { signature, partitions, where, loadTime, warmUpTime }: Started,
  /** The label of a version that was loaded later. */
  version?: string,
): string {
  const providers = new Set(partitions.flatMap(({ provider }) => provider ?? []));
  const on = providers.size > 0 ? ` on ${[...providers].join(' and ')}` : '';
  const parts = [
    `${runner}${on}, ${where ?? countOf(partitions.length, 'partition')}`,
    signature && `inputs ${describeTensors(signature.inputs)}`,
    signature?.outputs && `outputs ${describeTensors(signature.outputs)}`,
    `loaded in ${Math.round(loadTime)} ms`,
    warmUpTime !== undefined && `warm-up ${Math.round(warmUpTime)} ms`,
  ];
  const loaded = version === undefined ? '' : `, version ${formatValue(version)},`;
  return `Serving ${formatValue(name)}${loaded} is ready: ${parts.filter(Boolean).join('; ')}`;
}
