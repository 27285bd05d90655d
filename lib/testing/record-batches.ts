import type { Serving } from '../serving/serving.js';
import type { BatchEndEvent } from '../events/serving-event.js';

/**
 * The batches that end from now on, in that order, in a list that grows.
 *
 * @param source a serving, or the ServingService for all servings of the application
 */
export function recordBatches(source: Pick<Serving, 'eventsOf'>): readonly BatchEndEvent[] {
  const batches: BatchEndEvent[] = [];
  source.eventsOf('batch:end').subscribe((batch) => batches.push(batch));
  return batches;
}
