import type { PartitionStatus } from '../partitions/partition.js';
import type { Serving, ServingState } from './serving.js';

/** The health of a serving, for probes and operators. */
export interface ServingHealth {
  /** The name of the serving. */
  readonly serving: string;
  readonly state: ServingState;
  /**
   * Whether it answers calls: it is loaded and warm, is not shutting down, and at least one of its
   * partitions works.
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
  readonly partitions: readonly PartitionStatus[];
}

/** The health of a serving. A handle that a test puts in its place may lack some of this. */
export function healthOf(name: string, serving: Partial<Serving>): ServingHealth {
  const { state = 'ready', reason: ownReason = `it is ${state}` } = serving;
  const partitions = serving.partitions?.() ?? [];
  const queued = serving.queueDepths?.().get(name) ?? 0;
  const works = partitions.length === 0 || partitions.some((partition) => partition.state === 'up');
  const hangs =
    partitions.length > 0 && partitions.every((partition) => partition.state === 'hung');
  const reason = state === 'ready' ? reasonOf(partitions) : ownReason;
  return {
    serving: name,
    state,
    isReady: state === 'ready' && works,
    isLive: !hangs,
    ...(reason !== undefined && { reason }),
    queued,
    partitions,
  };
}

function reasonOf(partitions: readonly PartitionStatus[]): string | undefined {
  const reasons = partitions.flatMap(({ reason }) => reason ?? []);
  return reasons.length > 0 ? reasons.join('; ') : undefined;
}
