import type { CallOptions } from '../context/call-context.js';
import type { Callbacks, ResolvedServing } from '../definition/resolved-serving.js';
import type { RunnerOptions } from '../definition/serving-definition.js';
import type { LoadedVersion } from './loaded-version.js';
import type {
  ReloadOptions,
  ServingVersion,
  VersionRole,
  VersionStatus,
} from './serving-version.js';

/** A feature's: loads versions that share the calls with the active one, as one role. */
export interface VersionPolicy {
  /** Returns why the serving can't have one more of them. */
  obstacle?(options: ResolvedServing, loaded: Iterable<LoadedVersion>): string | undefined;
  /** The version's place. It has loaded, and `version.share` says how many calls it gets. */
  placeOf(version: LoadedVersion, callbacks: Callbacks): VersionPlace;
  /** True if the version answers no call, so its own calls and rows aren't the serving's. */
  readonly isHidden: boolean;
}

/** The policies by role, which is also the name of the option of `reload` with the share. */
export type VersionPolicies = Readonly<Partial<Record<VersionRole, VersionPolicy>>>;

/** A version's place beside the active one. */
export interface VersionPlace {
  /**
   * True if it answers a call that names no version. Versions before it have left this share of the
   * calls, so that it takes more of them.
   */
  readonly takes?: (input: unknown, options: CallOptions, left: number) => boolean;
  /** Called before a call of `batchedRun` runs on the active version. The result gets its reply. */
  readonly sees?: (
    input: unknown,
    options: CallOptions,
    active: LoadedVersion,
  ) => ((reply: Promise<unknown>) => void) | undefined;
  /** Added to the version's status. */
  readonly status?: Partial<VersionStatus>;
  /** Resolves when its own calls have ended. */
  idle?(): Promise<void>;
}

/** A feature's: loads versions by itself, such as those of the definition. */
export interface Rollout {
  /** Identifies the model when a version begins to load it; the version keeps the result. */
  markOf(model: RunnerOptions): Promise<unknown>;
  /** Called once the serving has started, again after a failure. */
  begin(loads: VersionLoads): Promise<void>;
  /** Called at the start, and when a version has become the active one. */
  follow(active: LoadedVersion, loads: VersionLoads): void;
  close(): void;
}

/** Loads versions, one at a time. */
export interface VersionLoads {
  /** True if the serving has a version of that label. */
  has(label: string): boolean;
  /** Loads a version; at boot it may take any time, since it may fetch its model. */
  load(options: ReloadOptions, limit?: number): Promise<ServingVersion>;
  /** Like {@link load}, within `recovery.restartTimeout`. */
  reload(options: ReloadOptions): Promise<ServingVersion>;
  /** Resolves when no version loads. */
  idle(): Promise<void>;
}
