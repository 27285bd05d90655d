import type { Batch } from '../batch/batch.js';
import { checkFixedBatch, checkMostRows } from '../definition/batch-size.js';
import type { Callbacks, ResolvedServing } from '../definition/resolved-serving.js';
import { differenceOf, signatureOfModel } from '../definition/serving-signature.js';
import {
  InvalidServingError,
  isServingError,
  messageOf,
  ServingClosedError,
  ServingLoadError,
  shortenStacks,
} from '../errors.js';
import { log } from '../log.js';
import type { EventHub } from '../events/event-hub.js';
import type { AdmissionPolicy } from '../batching/admission.js';
import type { SharingOpener } from '../execution/call-sharing.js';
import type { StatesOpener } from '../execution/kept-states.js';
import type { Lanes } from '../execution/lanes.js';
import type { Engine, OpenedEngine, ServingKind } from '../partitions/engine.js';
import { closeEngine, modelsLoaded } from '../partitions/engine.js';
import { type ServingSignature, warningsOf } from '../partitions/model/model-signature.js';
import { withVariableAxes } from '../partitions/model/variable-axes.js';
import { Pipeline } from '../execution/pipeline.js';
import type { RowFindings } from '../execution/row-check.js';
import { isExternal, movedRunner, runnerOf } from '../definition/resolve-definition.js';
import type { Runner, RunnerOptions, ServingDefinition } from '../definition/serving-definition.js';
import type { ReloadOptions } from './serving-version.js';
import type { Rollout } from './version-policy.js';
import { type Partition, statusOf } from '../partitions/partition.js';
import { TimedPartition } from '../partitions/worker/timed.partition.js';

interface VersionCalls {
  readonly label: string;
  readonly signature: ServingSignature | undefined;
}

/** What a version loads, and what it shares with its serving. */
export interface VersionParts extends VersionPlan {
  readonly callbacks: Callbacks;
  readonly sharing?: SharingOpener | undefined;
  readonly states?: StatesOpener | undefined;
  readonly admission?: readonly AdmissionPolicy[];
  readonly rollout?: Rollout | undefined;
  readonly events: EventHub;
  readonly replaces?: VersionCalls | undefined;
  /** True if its calls and rows aren't the serving's until it is promoted. */
  readonly isHidden?: boolean | undefined;
  /** True if its serving is paused while it loads. */
  readonly isPaused?: boolean | undefined;
}

/** Loads a version's partitions, checks them, and opens their pipeline. */
export class VersionLoader {
  private readonly loading = new AbortController();
  private readonly fetching = new AbortController();
  private findings: RowFindings | undefined;

  constructor(
    private readonly parts: VersionParts,
    private readonly lanes: Lanes,
  ) {}

  /** @throws ServingLoadError, or another ServingError that names the serving */
  async open(kind: ServingKind): Promise<Pipeline> {
    const { options, callbacks, events, sharing, admission } = this.parts;
    const { lanes } = this;
    const isShared = kind === 'batched';
    try {
      if (isShared) {
        sharing?.check();
      }
      const opened = await this.accepted(await this.openEngine(kind));
      if (opened.signature) {
        lanes.fit(opened.signature);
      }
      if (isShared) {
        this.warn(opened);
      }
      const shared = isShared ? await sharing?.open(options, opened) : undefined;
      const partitions = opened.partitions.map((each, index) => this.watched(each, index));
      const all = { ...opened, partitions };
      return new Pipeline(options, callbacks, lanes, all, events, { shared, admission });
    } catch (cause) {
      throw await this.failed(cause);
    }
  }

  /** The error of a failed start, whose caller is likely to end the process. */
  async failed(cause: unknown): Promise<Error> {
    await modelsLoaded();
    return this.errorOf(cause);
  }

  /** Runs every allowed size and the examples; returns the milliseconds, if anything ran. */
  async warmUp(
    pipeline: Pipeline,
    inputs: readonly unknown[] = this.parts.options.warmUp,
  ): Promise<number | undefined> {
    const begin = performance.now();
    const examples = await pipeline.examplesOf(inputs);
    await this.checkRows(pipeline, examples);
    const { cold, batches } = await pipeline.warmUp(examples);
    if (cold.length > 0) {
      log.warn(
        `Serving "${this.parts.options.name}" cannot run its allowed sizes (of key ` +
          `${cold.join(', ')}) before it is ready, since it has no example of their rows, so ` +
          'that the first callers wait for what each size compiles; give example inputs: ' +
          'warmUp: [...]',
      );
    }
    return batches > 0 ? performance.now() - begin : undefined;
  }

  /** Checks the first pipeline's model; its partitions, and other pipelines, run the same one. */
  async checkRows(pipeline: Pipeline, examples?: readonly Batch[]): Promise<void> {
    if (!this.findings) {
      const { warmUp, name } = this.parts.options;
      const rows = examples ?? (await pipeline.examplesOf(warmUp));
      this.findings = await pipeline.checkRows(rows);
      for (const finding of Object.values(this.findings) as readonly string[]) {
        log.warn(`The model of serving "${name}" ${finding}`);
      }
    }
    pipeline.obey(this.findings);
  }

  halt(error: Error): void {
    this.loading.abort(error);
  }

  /** Ends downloads, and frees what was kept of the model for later sessions. */
  stopFetching(): void {
    this.fetching.abort(
      new ServingClosedError(
        `Serving "${this.parts.options.name}" was closed before it had its model`,
      ),
    );
  }

  errorOf(cause: unknown): Error {
    const error = this.namedError(cause);
    shortenStacks(error);
    return error;
  }

  private namedError(cause: unknown): Error {
    const owner = `Serving "${this.parts.options.name}"`;
    if (!isServingError(cause)) {
      return new ServingLoadError(`${owner} could not start: ${messageOf(cause)}`, { cause });
    }
    const message = cause.message.startsWith(owner) ? cause.message : `${owner}: ${cause.message}`;
    // Loggers print an error's stack, which includes its message.
    return Object.assign(cause, {
      message,
      stack: cause.stack?.replace(cause.message, () => message),
    });
  }

  private openEngine(kind: ServingKind): Promise<OpenedEngine> {
    const { options, engine } = this.parts;
    const isShared = kind === 'batched';
    return engine(
      kind,
      isShared ? options.partitions : options.partitions.slice(0, 1),
      isShared ? this.lanes.keys : [],
      options.recovery,
      this.loading.signal,
      {
        log: (line) => log.log(`Serving "${options.name}" ${line}`),
        warn: (line) => log.warn(`Serving "${options.name}" ${line}`),
        signal: this.fetching.signal,
      },
    );
  }

  /** The model as its version's facts describe it. */
  private async accepted(opened: OpenedEngine): Promise<OpenedEngine> {
    const { signature, fetched } = opened;
    if (!signature) {
      return opened;
    }
    try {
      const stated = signatureOfModel(signature);
      const axes = fetched?.accept?.(stated);
      checkFixedBatch(this.parts.options, signature);
      checkMostRows(this.parts.options, signature);
      this.checkSame(stated);
      return { ...opened, signature: axes ? withVariableAxes(signature, axes) : signature };
    } catch (error) {
      await closeEngine(opened);
      throw error;
    }
  }

  /** @throws InvalidServingError for a model that takes or returns other tensors */
  private checkSame(signature: ServingSignature): void {
    const { options, replaces } = this.parts;
    const difference = replaces?.signature && differenceOf(replaces.signature, signature);
    if (difference !== undefined) {
      throw new InvalidServingError(
        `Serving "${options.name}": version "${options.version}" cannot run the calls of version ` +
          `"${replaces!.label}": ${difference}; a model with other inputs or outputs needs a ` +
          'serving of its own',
      );
    }
  }

  private warn({ signature, providers = [] }: OpenedEngine): void {
    const missing = providers.flatMap((each) =>
      (each?.missing ?? []).map((provider) => `runs on ${each!.inUse}, without ${provider}`),
    );
    for (const warning of [...warningsOf(signature), ...new Set(missing)]) {
      log.warn(`The model of serving "${this.parts.options.name}" ${warning}`);
    }
  }

  /** The partition with its `runTimeout`; logs and emits its changes of status. */
  private watched(own: Partition, index: number): Partition {
    const { name, recovery } = this.parts.options;
    const { runTimeout } = recovery;
    const partition = runTimeout === undefined ? own : new TimedPartition(index, own, runTimeout);
    let { provider: before } = statusOf(partition);
    partition.onChange?.(() => {
      const status = statusOf(partition);
      const { provider = before, reason } = status;
      if (provider !== before) {
        log.warn(
          `Serving "${name}": Partition ${index} now runs on ${provider}, and before on ${before}`,
        );
        before = provider;
      }
      if (reason !== undefined) {
        log.warn(`Serving "${name}": ${reason}`);
      }
      const { events } = this.parts;
      const labels = { serving: name, version: events.version, partition: index };
      events.emit({ type: 'partition:change', ...labels, ...status });
    });
    return partition;
  }
}

export interface VersionPlan {
  readonly options: ResolvedServing;
  readonly engine: Engine;
  /** Its definition's model; empty for an external one. */
  readonly model: RunnerOptions;
  /**
   * Plans a version that takes its place; undefined for what can't be loaded again.
   *
   * @throws InvalidServingError for a model that the serving can't have
   */
  readonly next?: ((change: VersionChange) => VersionPlan) | undefined;
}

type VersionChange = Pick<ReloadOptions, 'model'> & { readonly version: string };

export function changedDefinition(
  definition: ServingDefinition,
  { model, version }: VersionChange,
): ServingDefinition {
  // `watch` and further versions belong to the first definition.
  const own = { ...definition, rollout: { version } };
  if (model === undefined) {
    return own;
  }
  const runner = runnerOf(own);
  const changed = movedRunner(runner, model);
  if (!changed) {
    const advice = isExternal(own)
      ? "runs the model of a server; name another version of it: reload({ version: '2' })"
      : 'runs no model, so reload() cannot give it another; reload() without a model loads its file again';
    throw new InvalidServingError(`Serving "${definition.name}" ${advice}`);
  }
  return { ...own, model: changed as Runner };
}
