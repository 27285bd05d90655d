import type { Partition } from './partition.js';

/** How one partition of a serving is. */
export interface PartitionStatus {
  /**
   * `up`: it takes batches. `restarting`: its thread or process has ended, and is started again. `hung`: a batch runs longer than
   * `runTimeout`, or its thread loads longer than `restartTimeout`, and nothing else runs until that has ended. `lost`: it has failed too
   * often in a row, and is tried again now and then.
   */
  readonly state: 'up' | 'restarting' | 'hung' | 'lost';
  /** How often it has been started again. */
  readonly restarts: number;
  /** Why it is not up. */
  readonly reason?: string;
  /** The execution provider that runs its model while it is up. */
  readonly provider?: string;
}

export function statusOf({ status, lost }: Partition): PartitionStatus {
  return status ?? (lost ? { state: 'lost', restarts: 0, reason: lost.message } : { state: 'up', restarts: 0 });
}
