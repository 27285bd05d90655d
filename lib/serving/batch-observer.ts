import type { BatchObserver, BatchRecord } from '../batching/batcher.js';
import type { Request } from '../batching/request.js';
import { batchEnd, type BatchLabels, batchStart } from './serving-event.js';
import type { ServingEvents } from './serving-events.js';

/**
 * Counts every batch, and emits events when it starts and when it ends, where somebody observes them; only then are its
 * labels made.
 */
export function batchObserver<R extends Request>(
  events: ServingEvents,
  labelsOf: (record: BatchRecord<R>) => BatchLabels,
  counters = events.counters,
): BatchObserver<R> {
  return {
    batchStarted(record) {
      if (events.isObserved('batch:start')) {
        events.emit(batchStart(record, labelsOf(record)));
      }
    },
    batchEnded(record, runTime, outcome) {
      if (!outcome.takenBack) {
        counters.ran(record.rows, outcome.padding ?? 0, outcome.error !== undefined);
      }
      if (events.isObserved('batch:end')) {
        events.emit(batchEnd(record, labelsOf(record), runTime, outcome));
      }
    },
  };
}
