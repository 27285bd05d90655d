import type { Attributes } from '@opentelemetry/api';
import { isError, isServingError } from '../errors.js';
import type {
  BatchEndEvent,
  BatchStartEvent,
  CallEndEvent,
  CallMode,
  CallStage,
} from '../events/serving-event.js';

/** The name of what measures, as tracers and meters are asked for. */
export const SCOPE = 'nestjs-serving';

/** The method of the serving that makes calls of the mode. */
export const methodOf: Readonly<Record<CallMode, string>> = {
  batched: 'batchedRun',
  inline: 'run',
  stream: 'stream',
};

/** The stages of a call in their order, and what is done in each. */
export const stages: readonly (readonly [stage: CallStage, name: string])[] = [
  ['preprocessing', 'preprocess'],
  ['waiting', 'queue'],
  ['running', 'execute'],
  ['postprocessing', 'postprocess'],
];

/** What has answered the call, where it was not rows of its own. */
export function answeredBy({ answeredBy: other }: CallEndEvent): Attributes {
  return other === undefined ? {} : { 'serving.call.answered_by': other };
}

/** What is known of a batch when it starts. */
export function batchAttributes(event: BatchStartEvent): Attributes {
  return {
    'serving.name': event.serving,
    'serving.batch.id': event.batch,
    'serving.batch.key': event.key,
    ...(event.origin === undefined ? {} : { 'serving.batch.origin': event.origin }),
    'serving.batch.rows': event.rows,
    'serving.batch.capacity': event.batchSize,
    'serving.batch.fill': event.fill,
    'serving.batch.close_reason': event.reason,
    'serving.partition.id': event.partition,
    'serving.queue.depth': event.queued,
  };
}

/** What is known of it only at its end; times are in seconds. */
export function batchEndAttributes({ wait, runTime, padding }: BatchEndEvent): Attributes {
  return {
    'serving.batch.wait': wait / 1000,
    'serving.batch.run_time': runTime / 1000,
    'serving.batch.padding': padding,
  };
}

/** Whether something went wrong; not where a caller has left. */
export function hasFailed(event: CallEndEvent | BatchEndEvent): boolean {
  return 'error' in event && !hasLeft(event);
}

/**
 * Why it failed, in few words: the stable code of an error of this package, the name of any other;
 * or that its caller has left. Nothing, if it went as it should.
 */
export function outcomeOf(event: CallEndEvent | BatchEndEvent): Attributes {
  if (hasLeft(event)) {
    return { 'serving.call.cancelled': true };
  }
  return hasFailed(event) ? { 'error.type': typeOf(event.error) } : {};
}

function hasLeft(event: CallEndEvent | BatchEndEvent): boolean {
  return event.type === 'call:end' && event.cancelled === true;
}

function typeOf(error: unknown): string {
  if (isServingError(error)) {
    return error.code;
  }
  return isError(error) ? error.name : '_OTHER';
}
