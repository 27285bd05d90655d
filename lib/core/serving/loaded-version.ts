import { setImmediate as nextTurn } from 'node:timers/promises';
import { outsideCallContext } from '../context/caller-context.js';
import type { ResolvedServing } from '../definition/resolved-serving.js';
import { type ServingSignature, signatureOfTemplate } from '../definition/serving-signature.js';
import type { EventHub } from '../events/event-hub.js';
import { OverloadedError, ServingClosedError } from '../errors.js';
import { Lanes } from '../execution/lanes.js';
import { type ResolvedCallOptions, Waits } from '../execution/resolved-call-options.js';
import type { ServingKind } from '../partitions/handler.partition.js';
import type { PartitionStatus } from '../partitions/partition.js';
import { stampOf } from './file-watch.js';
import { LocalSessions } from './local-sessions.js';
import type { Pipeline } from './pipeline.js';
import type { VersionRole, VersionStatus } from './serving-version.js';
import type { Shadow } from './shadow.js';
import type { Closable } from './shutdown.js';
import { VersionLoader, type VersionParts, type VersionPlan } from './version-loader.js';

/** One version of a serving: its partitions, and the pipelines whose calls run on them. */
export class LoadedVersion implements Closable {
  readonly label: string;
  role: VersionRole = 'loading';
  /** The share of calls of a canary, or of copies of a shadow; of no meaning for other roles. */
  share = 0;
  /** Runs copies of calls, while the version answers none. */
  shadow: Shadow | undefined;
  readonly lanes: Lanes;
  /** The pipeline of `batchedRun`, once it is open; none in a serving with sessions. */
  pipeline: Pipeline | undefined;
  /** In a serving with sessions, in place of `pipeline`. */
  sessions: LocalSessions | undefined;
  /**
   * The pipeline of `run`, opened when first needed: a separate one, so that its calls wait for no
   * batch.
   */
  inlinePipeline: Pipeline | undefined;
  /** The template's signature; once the model is loaded, the model's. */
  signature: ServingSignature | undefined;
  /** Milliseconds that the partitions of `batchedRun` took to load. */
  loadTime = 0;
  /** Milliseconds that their warm-up took; undefined if it ran nothing. */
  warmUpTime: number | undefined;
  /** Identifies the watched file, as it was loaded. */
  stamp: string | undefined;
  /** The pipelines of `batchedRun`: one, or with sessions one for each partition. */
  private batched: readonly Pipeline[] = [];
  private opening: Promise<readonly Pipeline[]> | undefined;
  private inline: Promise<Pipeline> | undefined;
  /** Callers that wait for a pipeline to open. */
  private readonly waits = new Waits();
  /** All open pipelines, including those that warm up. */
  private readonly pipelines = new Set<Pipeline>();
  private readonly loader: VersionLoader;
  /** Called when its calls or sessions may have ended. */
  private changed: (() => void) | undefined;
  private readonly notify = (): void => this.changed?.();
  private isPaused: boolean;
  private isEnding = false;
  private isClosed = false;

  constructor(private readonly parts: VersionParts) {
    const { version, keys, otherKeys, queue, template } = parts.options;
    this.label = version;
    this.isPaused = parts.isPaused ?? false;
    this.signature = template && signatureOfTemplate(template);
    this.lanes = new Lanes(keys, otherKeys, queue.preservesOrder);
    this.loader = new VersionLoader(parts, this.lanes);
  }

  get options(): ResolvedServing {
    return this.parts.options;
  }

  get events(): EventHub {
    return this.parts.events;
  }

  /** {@link share}, if the version is a canary or a shadow. */
  get currentShare(): number | undefined {
    const { role, share } = this;
    return role === 'canary' || role === 'shadow' ? share : undefined;
  }

  get next(): VersionPlan['next'] {
    return this.parts.next;
  }

  /** True if it takes calls of `batchedRun`, or sessions. */
  get isOpen(): boolean {
    return this.batched.length > 0;
  }

  get isOpening(): boolean {
    return this.opening !== undefined;
  }

  /** True if a partition works. */
  get isUp(): boolean {
    return this.partitions.some(({ state }) => state === 'up');
  }

  get queued(): number {
    const queued = this.batched.reduce((rows, { depth }) => rows + depth, 0);
    return queued + (this.inlinePipeline?.depth ?? 0);
  }

  get partitions(): readonly PartitionStatus[] {
    return this.batched.flatMap(({ partitions }) => partitions);
  }

  get status(): VersionStatus {
    const { label: version, role, currentShare, shadow, queued, partitions } = this;
    const counters = this.parts.events.counters.now;
    return {
      version,
      role,
      ...(currentShare !== undefined && { share: currentShare }),
      ...(role === 'shadow' && shadow && { comparison: shadow.comparison }),
      counters,
      queued,
      partitions,
    };
  }

  /** Loads every partition; resolves when the version can be called. */
  async open(): Promise<void> {
    this.refuseOnceClosed();
    const opening = (this.opening ??= this.openWarm());
    try {
      const pipelines = await this.waits.for(opening);
      this.refuseOnceClosed();
      this.batched = pipelines;
      const { options, callbacks } = this.parts;
      if (options.sessions) {
        this.sessions = new LocalSessions(options, callbacks, pipelines, this.notify);
      } else {
        this.pipeline = pipelines[0];
      }
    } catch (error) {
      // A later start may succeed, unless the end waits for this one.
      this.opening = this.opening === opening && !this.isEnding ? undefined : this.opening;
      throw error;
    }
  }

  /** Runs these examples, once it is open. */
  async warmUp(inputs: readonly unknown[]): Promise<void> {
    await this.open();
    await this.loader.warmUp(this.batched, inputs).catch((cause: unknown) => {
      throw this.loader.errorOf(cause);
    });
  }

  /** The pipeline of `run`. The call waits for it no longer than its options allow. */
  async openInline(resolved?: ResolvedCallOptions): Promise<Pipeline> {
    this.refuseOnceClosed();
    const { name, queue } = this.parts.options;
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
    const waiting = this.waits.for(this.inline, resolved);
    waiting.then(this.notify, this.notify);
    return waiting;
  }

  /** Resolves when its calls and sessions have ended, or it is closed. */
  async idle(): Promise<void> {
    // A call that waited for a pipeline enters it within a turn of the event loop.
    for (await nextTurn(); !this.isClosed && !this.isIdle; await nextTurn()) {
      this.pipelines.forEach((pipeline) => (pipeline.onIdle = this.notify));
      await new Promise<void>((resolve) => (this.changed = resolve));
    }
  }

  /** While it is paused, its partitions take no batch. */
  pause(isPaused: boolean): void {
    this.isPaused = isPaused;
    this.pipelines.forEach((pipeline) => pipeline.pause(isPaused));
  }

  /** Its calls emit and count from now on; a shadow's calls don't. */
  show(): void {
    this.parts.events.show();
  }

  /** Its calls' counts become part of its serving's. */
  leave(): void {
    this.parts.events.leave();
  }

  drain(): void {
    this.isEnding = true;
    this.pipelines.forEach((pipeline) => pipeline.drain());
  }

  abandon(error: Error): void {
    this.isEnding = true;
    this.waits.end(error);
    this.pipelines.forEach((pipeline) => pipeline.abandon(error));
  }

  end(error: Error): boolean {
    const isWaitedFor = this.waits.size > 0;
    this.isEnding = true;
    this.waits.end(error);
    this.loader.halt(error);
    return [...this.pipelines].reduce((had, pipeline) => pipeline.end(error) || had, isWaitedFor);
  }

  halt(): void {
    this.pipelines.forEach((pipeline) => pipeline.halt());
  }

  /**
   * Closes the pipelines once their batches have run; one that is still opening, once it is open.
   */
  async close(): Promise<void> {
    this.isEnding = true;
    this.isClosed = true;
    this.notify();
    this.loader.stopFetching();
    // Closes the open pipelines now, so that they take no more calls.
    const closed = [...this.pipelines].map((pipeline) => pipeline.close());
    await Promise.all([this.opening?.catch(() => undefined), this.inline?.catch(() => undefined)]);
    await Promise.all([...closed, ...[...this.pipelines].map((pipeline) => pipeline.close())]);
    this.sessions?.close();
  }

  unfinished(): readonly string[] {
    return [...this.pipelines].flatMap((pipeline) => pipeline.unfinished());
  }

  private get isIdle(): boolean {
    const sessions = this.sessions?.size ?? 0;
    const pipelines = [...this.pipelines];
    return sessions + this.waits.size === 0 && pipelines.every(({ isIdle }) => isIdle);
  }

  private async openWarm(): Promise<readonly Pipeline[]> {
    const pipelines = await this.openPipelines('batched');
    try {
      this.warmUpTime = await this.loader.warmUp(pipelines);
    } catch (cause) {
      await Promise.all(pipelines.map((pipeline) => pipeline.close()));
      pipelines.forEach((pipeline) => this.pipelines.delete(pipeline));
      throw this.loader.errorOf(cause);
    }
    return pipelines;
  }

  /** One pipeline, or with sessions one for each partition. */
  private async openPipelines(kind: ServingKind): Promise<readonly Pipeline[]> {
    const { watch } = this.options;
    const begin = performance.now();
    if (kind === 'batched' && watch !== undefined) {
      // A change while it loads is a change after it.
      this.stamp = await stampOf(watch);
    }
    const { pipelines, signature = this.signature } = await this.loader.open(kind);
    this.signature = signature;
    this.loadTime = kind === 'batched' ? performance.now() - begin : this.loadTime;
    for (const pipeline of pipelines) {
      this.pipelines.add(pipeline);
      pipeline.pause(this.isPaused);
      if (this.isEnding) {
        pipeline.drain();
      }
    }
    return pipelines;
  }

  private refuseOnceClosed(): void {
    if (this.isClosed) {
      throw new ServingClosedError(
        `Serving "${this.parts.options.name}" is closed and takes no more calls`,
      );
    }
  }
}
