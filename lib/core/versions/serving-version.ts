import type { ModelFile, ModelOptions, ModelRepository } from '../definition/serving-definition.js';
import type { ServingCounters } from '../events/event-hub.js';
import type { PartitionStatus } from '../partitions/partition.js';

/** What a serving loads at run time, and the new version's calls. */
export interface ReloadOptions {
  /**
   * The model. Options that it does not name, such as `session`, are the active version's. For a
   * task: a folder, a repository of the Hub, `{ from, file }`, or an ONNX file in one of them; its
   * tokenizer, labels and limits come with it.
   *
   * @default the active version's file, read again
   */
  readonly model?: ModelFile | ModelOptions | ModelRepository;
  /**
   * The label of the version: in events and `versions()`, and for calls that ask for it.
   *
   * @default the next whole number that no version of the serving has had
   */
  readonly version?: string;
}

/** A version that `reload` has loaded. */
export interface ServingVersion {
  /** Its label. */
  readonly version: string;
  /**
   * A canary's share of calls, or a shadow's of copies, from 0 to 1; may be set. A canary keeps its
   * tenants while its share grows. Undefined for other versions.
   *
   * @throws InvalidServingError when it is set on another version, or to another number
   */
  share: number | undefined;
  /**
   * Makes it the active version, which gets all calls from now on. The one before is freed when its
   * calls have ended.
   *
   * @throws InvalidServingError when it has ended
   */
  promote(): Promise<void>;
  /**
   * Gives it no more calls; it is freed when its calls have ended. If it is the active version, the
   * one before is loaded again, from its file as it is now, and promoted.
   *
   * @throws InvalidServingError when it has ended, or is active and no version was active before
   * @throws ServingLoadError when the version before can't be loaded; the active one stays
   */
  rollback(): Promise<void>;
}

/** The roles of a version by name; features add theirs. */
export interface VersionRoles {
  loading: true;
  active: true;
  draining: true;
}

/** A version's calls: `active` and `canary` get some, the others none. */
export type VersionRole = keyof VersionRoles;

/** One version of a serving, and what it has done. */
export interface VersionStatus {
  /** Its label. */
  readonly version: string;
  /**
   * `loading`: it warms up and gets no calls. `active`: it gets all calls that no other gets.
   * `canary`: it gets its share of them. `shadow`: it runs copies of a share, and answers none.
   * `draining`: its last calls and sessions haven't ended.
   */
  readonly role: VersionRole;
  /** A canary's share of calls, or a shadow's of copies. */
  readonly share?: number;
  /** Totals of its calls and batches. */
  readonly counters: ServingCounters;
  /** Queued rows. */
  readonly queued: number;
  /** Status of each partition. */
  readonly partitions: readonly PartitionStatus[];
}
