import type { Observable } from 'rxjs';
import { InvalidServingError, type SessionEndedError } from '../errors.js';
import type { OpenSession, ServingSession, SessionOptions } from '../execution/kept-states.js';
import type { PartitionStatus } from '../partitions/partition.js';
import type { ServingStream } from '../streaming/serving-stream.js';
import type { CallOptions, StreamOptions } from '../context/call-context.js';
import type { EventOf, ServingCounters } from '../events/event-hub.js';
import type { ServingEvent } from '../events/serving-event.js';
import type { StreamedOutput, StreamEvent } from '../definition/reply.js';
import type { ServingSignature } from '../partitions/model/model-signature.js';
import type { ReloadOptions, ServingVersion, VersionStatus } from '../versions/serving-version.js';
import type { ServingOptions } from '../definition/serving-definition.js';
import type { ResolvedServing, ServingDistribution } from '../definition/resolved-serving.js';
import type { TargetStatus } from '../execution/pipeline.js';

/** `ready` once every partition is loaded and warm, until shutdown begins. */
export type ServingState = 'stopped' | 'starting' | 'ready' | 'closing' | 'closed';

/** A hold by hand. `paused`: rows wait. `drained`: new calls are refused. */
export type ServingHold = 'paused' | 'drained';

/**
 * A named serving's handle: type, injection token and contract in one.
 *
 * `Input` is what a caller passes, `Output` the reply, and `Streamed` a stream's output, which
 * follows from the reply.
 */
// With the parameter a handle of any output is one of `unknown`, also for TypeScript 5.
export abstract class Serving<
  Input = unknown,
  Output = unknown,
  Streamed = StreamedOutput<Output>,
> {
  /** The serving's name. */
  abstract readonly name: string;

  /** Its life cycle's stage. */
  abstract readonly state: ServingState;

  /** Why it is not ready, if its state does not say it. */
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

  /** Events when calls and batches start and end, and when a partition's status changes. Hot. */
  abstract readonly events$: Observable<ServingEvent>;

  /**
   * One type's events. Cheaper than all events, since unobserved ones are not created.
   *
   * @throws InvalidServingError for a type of no event
   */
  abstract eventsOf<Type extends ServingEvent['type']>(type: Type): Observable<EventOf<Type>>;

  /** Queued rows; 0 for a handle without its own queue. */
  get queued(): number {
    return 0;
  }

  /** The serving's totals; undefined for a handle that counts nothing. */
  counters(): ServingCounters | undefined {
    return undefined;
  }

  /** Its keys' latency targets and the sizes that follow; empty without a latency target. */
  targets(): readonly TargetStatus[] {
    return [];
  }

  /** Its partitions' status; empty for a handle without its own partitions. */
  partitions(): readonly PartitionStatus[] {
    return [];
  }

  /**
   * Names, types and shapes of inputs and outputs: a model's once it has started, a `template`'s
   * inputs. `undefined` if nothing declares them, and for a handle of other nodes until one with
   * the serving is known.
   */
  get signature(): ServingSignature | undefined {
    return undefined;
  }

  /** Its readiness, its faults and their reasons, and its queued rows. */
  health(): ServingHealth {
    return healthOf(this.name, this);
  }

  /**
   * Runs the input's rows in batches of their own, next in turn, without waiting for further rows.
   * A serving that was not started opens one partition for it, until its start.
   *
   * @throws ServingError for a failed batch function, or invalid input or output
   */
  abstract run(input: Input, options?: CallOptions): Promise<Output>;

  /**
   * Runs the input's rows in batches with other callers' rows; resolves with the output for the
   * input's rows.
   *
   * @throws OverloadedError when the queue is full
   * @throws ServingClosedError before the start and after the end
   * @throws InvalidInputError when the rows do not fit the serving
   * @throws UnknownKeyError for an unknown key
   * @throws BatchFailedError when a batch with one of the rows failed
   */
  abstract batchedRun(input: Input, options?: CallOptions): Promise<Output>;

  /**
   * Like {@link batchedRun} (or {@link run}, with `inline`), but yields output while the call runs:
   * each batch's, or each generator step's, in row order; a sequence's values as they come; with
   * `hooks` also the values that the batch function emits.
   *
   * Each subscription and each iteration makes its own call.
   *
   * @throws SlowConsumerError when more than 1024 steps or hooks wait to be read; the consumer gets
   * `batchedRun`'s errors, too
   */
  abstract stream<Hook extends string = never>(
    input: Input,
    options?: StreamOptions<Hook>,
  ): ServingStream<StreamEvent<Streamed, Hook>>;

  /**
   * Opens a session: its calls are steps, each from the state that the last one left. Only for a
   * serving with `sessions`, or a model with `state`.
   *
   * @throws OverloadedError when `sessions.max` sessions are open
   * @throws ServingClosedError before the start and after the end
   * @throws InvalidServingError for a serving without sessions
   */
  open(_options?: SessionOptions): ServingSession<Input, Output> {
    throw withoutSessions(this.name);
  }

  /**
   * Loads another model at run time, or the same file again. Calls go to it once it is warm; the
   * previous version is freed when its calls and sessions have ended, and stays if the load fails.
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

  /** The loaded versions, oldest first; empty for a handle without its own. */
  versions(): readonly VersionStatus[] {
    return [];
  }

  /**
   * The version with this label, to promote it or roll it back.
   *
   * @throws UnknownVersionError for an unknown label
   * @throws InvalidServingError for a handle without its own versions
   */
  version(_label: string): ServingVersion {
    throw new InvalidServingError(`Serving "${this.name}" has no versions of its own`);
  }

  /**
   * Partitions take no batches until {@link resume}; running batches end. Calls are admitted and
   * their rows wait; queue limits, timeouts and deadlines hold.
   *
   * @throws InvalidServingError for a handle without its own partitions
   * @throws ServingClosedError once shutdown has begun
   */
  pause(): void {
    throw this.notHeldHere();
  }

  /**
   * New calls fail with `ServingUnavailableError` until {@link resume}, and the serving is not
   * ready. Queued rows, running rows and open sessions finish.
   *
   * @throws InvalidServingError for a handle without its own partitions
   * @throws ServingClosedError once shutdown has begun
   */
  drain(): void {
    throw this.notHeldHere();
  }

  /** Ends {@link pause} and {@link drain}. */
  resume(): void {
    throw this.notHeldHere();
  }

  /** Its keys' current batch size and timeout; empty for a handle without its own keys. */
  keys(): readonly KeyStatus[] {
    return [];
  }

  /**
   * Changes one key's batch size, or all keys', from the next window on.
   *
   * @throws InvalidServingError for an invalid size
   */
  abstract setBatchSize(rows: number, key?: string): void;

  /**
   * Changes the milliseconds that windows wait for more rows, for one key or all, from the next
   * window on.
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

export function withoutSessions(name: string): InvalidServingError {
  return new InvalidServingError(
    `Serving "${name}" has no sessions; give its model the option sessions or state`,
  );
}

/** A definition's handle: `ServingOf<typeof embedder>`. */
export type ServingOf<Definition> =
  Definition extends ServingOptions<infer Input, infer Output, infer _Result, infer _Info>
    ? Serving<Input, Output>
    : never;

/** How a key's rows form batches. */
export interface KeyStatus {
  /** The key's name. */
  readonly key: string;
  /** Rows of a full batch. */
  readonly batchSize: number;
  /** Milliseconds that a batch waits for more rows. */
  readonly batchTimeout: number;
}

/** A serving's health, for probes and operators. */
export interface ServingHealth {
  /** The serving's name. */
  readonly serving: string;
  /** Its life cycle's stage. */
  readonly state: ServingState;
  /**
   * True if it answers calls: it is loaded and warm, not drained or shutting down, and a partition
   * works.
   */
  readonly isReady: boolean;
  /**
   * False when only a new process helps: every partition hangs in a batch or load that cannot be
   * ended.
   */
  readonly isLive: boolean;
  /** What is wrong, even if other parts work. */
  readonly reason?: string;
  /** Queued rows. */
  readonly queued: number;
  /** Its partitions' status. */
  readonly partitions: readonly PartitionStatus[];
}

/** A test's stand-in may lack members. */
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

/** The injection token of the {@link ServingRouter}. */
export const SERVING_ROUTER = Symbol('serving router');

/** The cluster's part that the core calls; only with `ServingClusterModule`. */
export interface ServingRouter {
  /**
   * The handle of a serving on other nodes.
   *
   * @throws UnknownServingError for a name that is not a string
   */
  remote(name: string, preprocess?: RemotePreprocess): Serving;
  /** A call's target by name; `local` is the application's own serving of that name. */
  route(name: string, local: Serving | undefined, preprocess?: RemotePreprocess): Serving;
  isRemote(serving: Serving | undefined): boolean;
  /** The cluster's nodes, this one included, as of their last heartbeats. */
  nodes(): readonly ClusterNode[];
  /** Resolves when other nodes' calls are answered, or at the shutdown limit. */
  answered(): Promise<void>;
}

/** Used by the module, protocols and the cluster. */
export interface LocalPart {
  readonly profile: ServingProfile;
  /** Emits when its readiness may have changed, until its shutdown. */
  readonly changes$: Observable<unknown>;
  /** Versions that calls may ask for; the last one is active. */
  readonly versionLabels: readonly string[];
  /** Milliseconds after which shutdown has answered every call. */
  readonly shutdownLimit: number;
  /** Options for calls from other nodes. */
  readonly distribution: ServingDistribution;
  /** The version that would run the call now, if any. */
  versionFor(input: unknown, options: CallOptions): string | undefined;
  /** Opens a session. With `needsFirst`, it ends if its first call fails. */
  openSession(
    options: SessionOptions,
    onEnd?: (reason: SessionEndedError) => void,
    needsFirst?: boolean,
  ): OpenSession;
  /** True if ServingModule closes the serving, after all that may call it. */
  closesLast: boolean;
  close(): Promise<void>;
  beforeApplicationShutdown(): void;
}

/** What protocols tell clients about a serving. */
export interface ServingProfile {
  readonly runner: ResolvedServing['runner'];
  readonly batchSize: number;
  readonly batchTimeout: number;
  readonly maxRowsPerCall: number;
  /** Milliseconds without a call until a state is dropped; undefined if calls have no state. */
  readonly stateIdle: number | undefined;
  /** True if batches don't mix origins. */
  readonly separatesOrigins: boolean;
  readonly hasCache: boolean;
  readonly isContinuous: boolean;
  /** True if `preprocess` makes the rows from other input. */
  readonly shapesInput: boolean;
  /** True if `postprocess` makes the reply. */
  readonly shapesOutput: boolean;
}

/** A cluster's node or client, as of its last heartbeat. */
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
  /** True for this node. */
  readonly isSelf: boolean;
  /** Its servings with weight and load. */
  readonly servings: readonly ServingStatus[];
}

/** A node's serving, as of the node's last heartbeat. */
export interface ServingStatus {
  readonly name: string;
  /** Its `distribution.weight`: 0 or more, also a fraction. */
  readonly weight: number;
  /** Working partitions. */
  readonly partitions: number;
  /** Other nodes' unanswered calls. */
  readonly activeCalls: number;
  /** Queued rows. */
  readonly queued: number;
  /** Milliseconds that a batch runs, as a moving average without queueing; 0 before the first. */
  readonly batchTime: number;
  /** True if a call may run again when its answer is lost. */
  readonly idempotent: boolean;
  /** True if it answers calls: it is loaded and warm, not closing, and a partition works. */
  readonly isReady: boolean;
  /**
   * Its inputs and outputs; `undefined` if undeclared, or if the node's 16 KB for all servings have
   * no room for them.
   */
  readonly signature?: ServingSignature | undefined;
}
