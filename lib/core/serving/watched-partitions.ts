import type { EventHub } from '../events/event-hub.js';
import { log } from '../log.js';
import type { ServingKind } from '../partitions/handler.partition.js';
import { type Partition, type PartitionStatus, statusOf } from '../partitions/partition.js';
import { TimedPartition } from '../partitions/worker/timed.partition.js';

export interface WatchOptions {
  readonly serving: string;
  readonly kind: ServingKind;
  readonly runTimeout: number | undefined;
  readonly events: EventHub;
}

/** The partitions with their `runTimeout`; changes of their status are logged and emitted. */
export function watchedPartitions(
  partitions: readonly Partition[],
  options: WatchOptions,
): readonly Partition[] {
  const { runTimeout } = options;
  const timed =
    runTimeout === undefined
      ? partitions
      : partitions.map((partition, index) => new TimedPartition(index, partition, runTimeout));
  timed.forEach((partition, index) => watch(partition, index, options));
  return timed;
}

function watch(partition: Partition, index: number, options: WatchOptions): void {
  const { serving } = options;
  let { provider: before } = statusOf(partition);
  partition.onChange?.(() => {
    const status = statusOf(partition);
    const { provider = before } = status;
    if (provider !== before) {
      log.warn(
        `Serving "${serving}": Partition ${index} now runs on ${provider}, and before on ${before}`,
      );
      before = provider;
    }
    changed(index, status, options);
  });
}

function changed(
  partition: number,
  status: PartitionStatus,
  { serving, kind, events }: WatchOptions,
): void {
  if (status.reason !== undefined) {
    log.warn(`Serving "${serving}"${kind === 'inline' ? ', for run()' : ''}: ${status.reason}`);
  }
  const { version } = events;
  events.emit({ type: 'partition:change', serving, version, kind, partition, ...status });
}
