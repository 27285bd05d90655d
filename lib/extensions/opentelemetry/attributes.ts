import type { Attributes } from '@opentelemetry/api';
import {
  isServingError,
  type BatchEndEvent,
  type BatchStartEvent,
  type CallEndEvent,
  type CallMode,
  type CallStage,
} from '../../index.js';
import { DEFAULT_VERSION } from '../../doors/options.js';
import { isError } from '../../doors/text.js';

export const SCOPE = 'nestjs-serving';

export const methodOf: Readonly<Record<CallMode, string>> = {
  batched: 'batchedRun',
  inline: 'run',
  stream: 'stream',
};

export const stages: readonly (readonly [stage: CallStage, name: string])[] = [
  ['preprocessing', 'preprocess'],
  ['waiting', 'queue'],
  ['running', 'execute'],
  ['postprocessing', 'postprocess'],
];

export function answeredBy({ answeredBy: other }: CallEndEvent): Attributes {
  return other === undefined ? {} : { 'serving.call.answered_by': other };
}

/** Omits the default version, which would start new series for all users. */
export function versionOf({
  version = DEFAULT_VERSION,
}: Pick<CallEndEvent, 'version'>): Attributes {
  return version === DEFAULT_VERSION ? {} : { 'serving.version': version };
}

/** Times are in seconds. */
export function batchAttributes(event: BatchStartEvent): Attributes {
  return {
    'serving.name': event.serving,
    ...versionOf(event),
    'serving.batch.id': event.batch,
    'serving.batch.key': event.key,
    ...(event.origin === undefined ? {} : { 'serving.batch.origin': event.origin }),
    'serving.batch.rows': event.rows,
    'serving.batch.capacity': event.batchSize,
    'serving.batch.fill': event.fill,
    ...(event.cost && { 'serving.batch.cost': event.cost.padded }),
    'serving.batch.close_reason': event.reason,
    ...(event.expected === undefined
      ? {}
      : { 'serving.batch.expected_time': event.expected / 1000 }),
    'serving.partition.id': event.partition,
    'serving.queue.depth': event.queued,
  };
}

/** Times are in seconds. */
export function batchEndAttributes({ wait, runTime, padding }: BatchEndEvent): Attributes {
  return {
    'serving.batch.wait': wait / 1000,
    'serving.batch.run_time': runTime / 1000,
    'serving.batch.padding': padding,
  };
}

/** A caller that has left is not a failure. */
export function hasFailed(event: CallEndEvent | BatchEndEvent): boolean {
  return 'error' in event && !hasLeft(event);
}

/** `error.type` is this package's error code, or any other error's name. */
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
