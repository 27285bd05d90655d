import type { BatchObserver, BatchRecord } from '../batching/batcher.js';
import type { Request } from '../batching/request.js';
import { batchEnd, type BatchLabels, batchStart } from './serving-event.js';
import type { ServingEvents } from './serving-events.js';

/** Tells of every batch when it starts and when it ends, where somebody observes that; only then are its labels asked for. */
export function batchObserver<R extends Request>(
  events: ServingEvents,
  labelsOf: (record: BatchRecord<R>) => BatchLabels,
): BatchObserver<R> {
  return {
    batchStarted(record) {
      if (events.isObserved('batch:start')) {
        events.emit(batchStart(record, labelsOf(record)));
      }
    },
    batchEnded(record, runTime, outcome) {
      if (events.isObserved('batch:end')) {
        events.emit(batchEnd(record, labelsOf(record), runTime, outcome));
      }
    },
  };
}
