import type { Observable } from 'rxjs';
import { InvalidServingError, type SessionEndedError } from '../errors.js';
import type { ServingSession, SessionOptions } from '../sessions/serving-session.js';
import type { PartitionStatus } from '../partitions/partition.js';
import type { ServingStream } from '../streaming/serving-stream.js';
import type { CallOptions, StreamOptions } from '../context/call-context.js';
import type { EventOf, ServingCounters } from '../events/event-hub.js';
import type { ServingEvent } from '../events/serving-event.js';
import type { StreamedOutput, StreamEvent } from '../definition/reply.js';
import type { ServingSignature } from '../definition/serving-signature.js';
import type { ReloadOptions, ServingVersion, VersionStatus } from '../rollout/serving-version.js';
import type { ServingOptions } from '../definition/serving-definition.js';
import type { ResolvedServing, ServingDistribution } from '../definition/resolved-serving.js';
import type { TargetStatus } from '../execution/pipeline.js';
import type { OrderedSession } from '../sessions/ordered-session.js';

/** `ready` from the time when every partition is loaded and warm until shutdown begins. */
export type ServingState = 'stopped' | 'starting' | 'ready' | 'closing' | 'closed';

/** How a serving is held by hand: `paused`, its rows wait; `drained`, its new calls are refused. */
export type ServingHold = 'paused' | 'drained';

/**
 * The handle of a named serving: type, injection token and contract in one.
 *
 * `Input` is what a caller passes, `Output` is the reply, and `Streamed` an output of a stream,
 * which follows from the reply.
 */
// With the parameter a handle of any output is one of `unknown`, also for TypeScript 5.
export abstract class Serving<
  Input = unknown,
  Output = unknown,
  Streamed = StreamedOutput<Output>,
> {
  /** The name of the serving. */
  abstract readonly name: string;

  /** The stage of its life cycle. */
  abstract readonly state: ServingState;

  /** A description why it is not ready, where its state does not say it. */
  get reason(): string | undefined {
    return undefined;
  }

  /** @internal Undefined for a handle of other nodes. */
  get local(): LocalPart | undefined {
    return undefined;
  }

  /** How it is held by hand; undefined while it runs. */
  get held(): ServingHold | undefined {
    return undefined;
  }

  /**
   * The events of the serving: calls and batches when they start and end, and partitions whose
   * status changes. Hot.
   */
  abstract readonly events$: Observable<ServingEvent>;

  /**
   * The events of one type. Cheaper than all events, since none is created that nothing observes.
   */
  abstract eventsOf<Type extends ServingEvent['type']>(type: Type): Observable<EventOf<Type>>;

  /** The number of queued rows; 0 for a handle without a queue of its own. */
  get queued(): number {
    return 0;
  }

  /** The totals of the serving; undefined for a handle that counts nothing. */
  counters(): ServingCounters | undefined {
    return undefined;
  }

  /** The latency targets of its keys and the sizes that follow; empty without a latency target. */
  targets(): readonly TargetStatus[] {
    return [];
  }

  /** The status of its partitions; empty for a handle without partitions of its own. */
  partitions(): readonly PartitionStatus[] {
    return [];
  }

  /**
   * The names, types and shapes of its inputs and outputs: of a model from its start on, of a
   * `template` the inputs. `undefined` where nothing declares them, and for a handle of other nodes
   * until one of them that has the serving is known.
   */
  get signature(): ServingSignature | undefined {
    return undefined;
  }

  /** Whether it answers calls, what of it does not work and why, and how many rows are queued. */
  health(): ServingHealth {
    return healthOf(this.name, this);
  }

  /**
   * Runs the input alone and immediately, without other callers' rows.
   *
   * @throws ServingError for a failed batch function, or invalid input or output
   */
  abstract run(input: Input, options?: CallOptions): Promise<Output>;

  /**
   * Runs the input's rows in batches with concurrent callers' rows; resolves with the
   * output for these rows.
   *
   * @throws OverloadedError when the queue has no room
   * @throws ServingClosedError before the start and after the end
   * @throws InvalidInputError when the rows do not fit the serving
   * @throws UnknownKeyError when the serving doesn't have the rows' key
   * @throws BatchFailedError when the batch that held one of the rows failed
   */
  abstract batchedRun(input: Input, options?: CallOptions): Promise<Output>;

  /**
   * Like {@link batchedRun} (or {@link run}, with `inline`), but yields each batch's output,
   * or of each step of a generator, while the call runs, in the order of its rows; of a sequence
   * each value as it comes; with `hooks` also the values that the batch function emits.
   *
   * Each subscription and each iteration makes a call of its own, which starts with it.
   *
   * @throws SlowConsumerError when more than 1024 steps or hooks wait to be read; the errors of
   * `batchedRun` go to the consumer, too
   */
  abstract stream<Hook extends string = never>(
    input: Input,
    options?: StreamOptions<Hook>,
  ): ServingStream<StreamEvent<Streamed, Hook>>;

  /**
   * Opens a session: its calls are steps, each from the state that the last one left. Only for a
   * serving with `sessions`, or a model with `state`.
   *
   * @throws OverloadedError when as many as `sessions.max` are open
   * @throws ServingClosedError before the start and after the end
   * @throws InvalidServingError for a serving without sessions
   */
  open(_options?: SessionOptions): ServingSession<Input, Output> {
    throw withoutSessions(this.name);
  }

  /**
   * Loads another model at run time, or the same file again. Calls go to it once it is warm; the
   * version before is freed when its calls and sessions have ended, and stays if the load fails.
   * Only for `model` and `useFile`.
   *
   * @throws InvalidServingError for what cannot be loaded again, for a model with other inputs or
   * outputs, and while another version loads
   * @throws ServingLoadError when the version cannot be loaded
   * @throws ServingClosedError before the start and after the end
   */
  async reload(_options?: ReloadOptions): Promise<ServingVersion> {
    throw new InvalidServingError(`Serving "${this.name}" has no versions that can be reloaded`);
  }

  /** The versions that are loaded, the oldest first; empty for a handle without any of its own. */
  versions(): readonly VersionStatus[] {
    return [];
  }

  /**
   * The version with this label, to promote it or roll it back.
   *
   * @throws UnknownVersionError when none has the label
   * @throws InvalidServingError for a handle without versions of its own
   */
  version(_label: string): ServingVersion {
    throw new InvalidServingError(`Serving "${this.name}" has no versions of its own`);
  }

  /**
   * Its partitions take no batch until {@link resume}. Calls are admitted and their rows wait; the
   * limits of the queue, timeouts and deadlines hold. Batches that run end.
   *
   * @throws InvalidServingError for a handle without partitions of its own
   * @throws ServingClosedError once shutdown has begun
   */
  pause(): void {
    throw this.notHeldHere();
  }

  /**
   * New calls fail with `ServingUnavailableError` until {@link resume}, and the serving is not
   * ready. Queued and running rows finish; so do sessions that are open.
   *
   * @throws InvalidServingError for a handle without partitions of its own
   * @throws ServingClosedError once shutdown has begun
   */
  drain(): void {
    throw this.notHeldHere();
  }

  /** Ends {@link pause} and {@link drain}. */
  resume(): void {
    throw this.notHeldHere();
  }

  /**
   * The batch size and batch timeout of its keys now; empty for a handle without keys of its own.
   */
  keys(): readonly KeyStatus[] {
    return [];
  }

  /**
   * Changes the batch size of one key, or of all keys, from the next window on.
   *
   * @throws InvalidServingError for an invalid size
   */
  abstract setBatchSize(rows: number, key?: string): void;

  /**
   * Changes the milliseconds that a window waits for more rows, of one key or of all keys, from the
   * next window on.
   *
   * @throws InvalidServingError for an invalid time
   */
  abstract setBatchTimeout(milliseconds: number, key?: string): void;

  private notHeldHere(): InvalidServingError {
    return new InvalidServingError(
      `Serving "${this.name}" has no partitions here; pause, drain or resume it on the node that ` +
        'has it',
    );
  }
}

/** The error of `open` for a serving whose calls have no state. */
export function withoutSessions(name: string): InvalidServingError {
  return new InvalidServingError(
    `Serving "${name}" has no sessions; give its model the option sessions or state`,
  );
}

/** The handle of a definition: `ServingOf<typeof embedder>`. */
export type ServingOf<Definition> =
  Definition extends ServingOptions<infer Input, infer Output, infer _Result, infer _Info>
    ? Serving<Input, Output>
    : never;

/** How a key's rows form batches. */
export interface KeyStatus {
  /** The name of the key. */
  readonly key: string;
  /** A batch with this many rows is full. */
  readonly batchSize: number;
  /** Milliseconds that a batch waits for more rows. */
  readonly batchTimeout: number;
}

/** The health of a serving, for probes and operators. */
export interface ServingHealth {
  /** The name of the serving. */
  readonly serving: string;
  /** The stage of its life cycle. */
  readonly state: ServingState;
  /**
   * Whether it answers calls: it is loaded and warm, is not drained or shutting down, and at least
   * one of its partitions works.
   */
  readonly isReady: boolean;
  /**
   * False when only a new process helps: every partition hangs in a batch or a load that cannot be
   * ended.
   */
  readonly isLive: boolean;
  /** A description of what is wrong, also where other parts work. */
  readonly reason?: string;
  /** The number of queued rows. */
  readonly queued: number;
  /** The status of its partitions. */
  readonly partitions: readonly PartitionStatus[];
}

/** The health of a serving. A handle that a test puts in its place may lack some of this. */
export function healthOf(name: string, serving: Partial<Serving>): ServingHealth {
  const { state = 'ready', reason: ownReason = `it is ${state}`, queued = 0, held } = serving;
  const partitions = serving.partitions?.() ?? [];
  const works = partitions.length === 0 || partitions.some((partition) => partition.state === 'up');
  const hangs =
    partitions.length > 0 && partitions.every((partition) => partition.state === 'hung');
  const reason = state === 'ready' ? reasonOf(partitions, held) : ownReason;
  return {
    serving: name,
    state,
    isReady: state === 'ready' && works && held !== 'drained',
    isLive: !hangs,
    ...(reason !== undefined && { reason }),
    queued,
    partitions,
  };
}

function reasonOf(
  partitions: readonly PartitionStatus[],
  held: ServingHold | undefined,
): string | undefined {
  const byHand = held ? [`it was ${held} by hand`] : [];
  const reasons = [...byHand, ...partitions.flatMap(({ reason }) => reason ?? [])];
  return reasons.length > 0 ? reasons.join('; ') : undefined;
}

/** Changes an input before it leaves for another node. */
export type RemotePreprocess = (input: unknown) => unknown;

/** The injection token of the one {@link ServingRouter} that an application may have. */
export const SERVING_ROUTER = Symbol('serving router');

/** The part of a cluster that the core calls; there is none without `ServingClusterModule`. */
export interface ServingRouter {
  /**
   * The handle of a serving that runs on other nodes.
   *
   * @throws UnknownServingError for a name that is not a string
   */
  remote(name: string, preprocess?: RemotePreprocess): Serving;
  /** The target of a call by name; `local` is the application's own serving of that name. */
  route(name: string, local: Serving | undefined, preprocess?: RemotePreprocess): Serving;
  isRemote(serving: Serving | undefined): boolean;
  /** The nodes of the cluster, this one included, as of their last heartbeats. */
  nodes(): readonly ClusterNode[];
  /** Resolves when the calls of other nodes are answered, or at the limit of shutdown. */
  answered(): Promise<void>;
}

/** The part of a serving that runs in this process, for the module, protocols and the cluster. */
export interface LocalPart {
  readonly profile: ServingProfile;
  /** The versions that calls may ask for; the last is the active version. */
  readonly versionLabels: readonly string[];
  /** Milliseconds after which shutdown has answered every call. */
  readonly shutdownLimit: number;
  /** The options for calls from other nodes. */
  readonly distribution: ServingDistribution;
  /** The version that would run the call now; undefined if none would. */
  versionFor(input: unknown, options: CallOptions): string | undefined;
  /**
   * Opens a session, and calls back when it ends. With `needsFirst` it ends if its first call
   * fails.
   */
  openSession(
    options: SessionOptions,
    onEnd?: (reason: SessionEndedError) => void,
    needsFirst?: boolean,
  ): OrderedSession;
  /** Starts the clock of shutdown. */
  beforeApplicationShutdown(): void;
}

/** The facts of a serving that a protocol states to its clients. */
export interface ServingProfile {
  readonly runner: ResolvedServing['runner'];
  /** The rows of a full batch. */
  readonly batchSize: number;
  /** Milliseconds that a batch waits for more rows. */
  readonly batchTimeout: number;
  /** The largest number of rows of a call. */
  readonly maxRowsPerCall: number;
  /** Milliseconds after which a session ends; undefined without sessions. */
  readonly sessionIdle: number | undefined;
  /** True if a batch holds calls of one origin only. */
  readonly separatesOrigins: boolean;
  /** Whether replies are kept for calls with the same input. */
  readonly hasCache: boolean;
  /** Whether its rows run step by step. */
  readonly isSequence: boolean;
  /** Whether `preprocess` makes the rows, so that callers pass something else. */
  readonly shapesInput: boolean;
  /** Whether `postprocess` makes the reply. */
  readonly shapesOutput: boolean;
}

/** A node or client of the cluster, as of its last heartbeat. */
export interface ClusterNode {
  /** Its `nodeId`. */
  readonly id: string;
  /** Its address, new with each start. */
  readonly address: string;
  /** A client calls and serves nothing. */
  readonly role: 'node' | 'client';
  /**
   * `draining`: it finishes its calls and takes no more. `silent`: it gets no calls until its next
   * heartbeat.
   */
  readonly state: 'up' | 'draining' | 'silent';
  /** Whether it is this node. */
  readonly isSelf: boolean;
  /** Its servings, each with weight and load. */
  readonly servings: readonly ServingStatus[];
}

/** One serving of a node, as of the node's last heartbeat. */
export interface ServingStatus {
  readonly name: string;
  /** Its `distribution.weight`: 0 or more, also a fraction. */
  readonly weight: number;
  /** The partitions that work. */
  readonly partitions: number;
  /** The calls of other nodes that have no answer yet. */
  readonly activeCalls: number;
  /** The rows in its queue. */
  readonly queued: number;
  /**
   * Milliseconds that a batch runs, as a moving average, without the time in the queue; 0 before
   * the first batch.
   */
  readonly batchTime: number;
  /** Whether a call may run again when its answer is lost. */
  readonly idempotent: boolean;
  /**
   * Whether it answers calls: it is loaded and warm, is not closing, and has a working partition.
   */
  readonly isReady: boolean;
  /**
   * Its inputs and outputs; `undefined` where nothing declares them, and where it does not fit
   * into the 16 KB for all servings of a node.
   */
  readonly signature?: ServingSignature | undefined;
}
