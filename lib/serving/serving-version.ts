import type { ModelFile, ModelOptions } from '../definition/serving-definition.js';
import type { ServingCounters } from '../events/event-hub.js';
import type { PartitionStatus } from '../partitions/partition.js';

/** What a serving loads at run time, and which calls it gets. */
export interface ReloadOptions {
  /**
   * The model. Options that it does not name, such as `session`, are those of the definition.
   *
   * @default the file of the definition, read again
   */
  readonly model?: ModelFile | ModelOptions;
  /**
   * The label of the version: in events and `versions()`, and for calls that ask for it.
   *
   * @default the next whole number that no version of the serving has had
   */
  readonly version?: string;
  /**
   * The share of calls that the version gets, from 0 to 1, beside the active version. 0: only calls
   * that ask for it by its label.
   *
   * @default the version takes the place of the active one
   */
  readonly canary?: number;
}

/** A version that `reload` has loaded. */
export interface ServingVersion {
  /** Its label. */
  readonly version: string;
  /**
   * Makes it the active version: it gets all calls from now on. The one before is freed when its
   * calls have ended.
   *
   * @throws InvalidServingError when it has ended
   */
  promote(): Promise<void>;
  /**
   * Gives it no more calls; it is freed when its calls have ended.
   *
   * @throws InvalidServingError when it is the active version, or has ended
   */
  rollback(): Promise<void>;
}

/** Which calls a version gets: `active` and `canary` ones get some, the others none. */
export type VersionRole = 'loading' | 'active' | 'canary' | 'draining';

/** One version of a serving, and what it has done. */
export interface VersionStatus {
  /** Its label. */
  readonly version: string;
  /**
   * `loading`: it warms up and gets no calls. `active`: it gets all calls that no other gets.
   * `canary`: it gets its share of them. `draining`: its last calls and sessions have not ended.
   */
  readonly role: VersionRole;
  /** The share of calls of a canary. */
  readonly share?: number;
  /** The totals of its calls and batches. */
  readonly counters: ServingCounters;
  /** The number of queued rows. */
  readonly queued: number;
  /** The status of its partitions. */
  readonly partitions: readonly PartitionStatus[];
}
