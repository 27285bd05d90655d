import type { Combination, Facts } from '../../core/definition/combinations.js';
import {
  DEFAULT_BATCH_SIZE,
  groupOf,
  isRecord,
  type Rule,
  whole,
} from '../../core/definition/option-rules.js';
import { eventTypes } from '../../core/events/event-hub.js';
import { formatValue } from '../../core/format.js';
import type { OpenPartition, OtherHandler } from '../../core/partitions/engine.js';
import type { Feature } from '../../core/serving/feature.js';
import type { AnySequenceModel, SequenceLimits } from './sequence-model.js';
import { SequencePartition } from './sequence.partition.js';

declare module '../../core/definition/serving-definition.js' {
  interface CodeOptions {
    /**
     * The rows run step by step, by a `SequenceModel`: the factory or the file returns it in place of
     * a batch function, or the class is one. A row joins the running ones as soon as a place is free;
     * `batchSize` is the number of places of each partition. `sequence: {}` has no further limits.
     *
     * @default rows run in batches
     */
    readonly sequence?: SequenceOptions | undefined;
  }
}

declare module '../../core/partitions/batch-function.js' {
  interface OtherModels<Inputs, Results> {
    readonly sequence: AnySequenceModel<Inputs, Results>;
  }
}

declare module '../../core/events/serving-event.js' {
  interface ServingEvents {
    readonly 'sequence:step': SequenceStepEvent;
  }
}

/** The limits of the rows that join a sequence before a step. */
export interface SequenceJoins {
  /**
   * The largest number of rows that join before one step.
   *
   * @default no limit
   */
  readonly rows?: number;
  /**
   * The largest total cost of the rows that join before one step, by `cost` of the model; the first
   * of them joins whatever it costs. A smaller value delays the rows that run for less time, and
   * the new rows for longer.
   *
   * @default no limit
   */
  readonly cost?: number;
}

/** The rows of a serving that run step by step, and join and leave between two steps. */
export interface SequenceOptions {
  /** Limits the rows that join before each step. */
  readonly joins?: SequenceJoins;
  /**
   * The largest total cost of the rows that run on a partition, by `cost` of the model. Beyond it
   * the youngest row is paused, and starts again once it fits. A row that costs more by itself
   * fails with a RequestTooLargeError.
   *
   * @default no limit
   */
  readonly maxCost?: number;
}

/** A sequence model as a Nest provider: one object for all partitions and keys. */
export interface SequenceHandler extends AnySequenceModel, OtherHandler {}

/** One step of sequences, as events report it. */
export interface SequenceStepRecord {
  /** The rows that were present. */
  readonly rows: number;
  /** The partition's rows that waited to join, or to start again after a pause. */
  readonly waiting: number;
  /** Milliseconds that the model's `step` took. */
  readonly runTime: number;
}

/** A partition has run a step of sequences: the next value of each present row. */
export interface SequenceStepEvent extends SequenceStepRecord {
  /** The event's type. */
  readonly type: 'sequence:step';
  /** The serving's name. */
  readonly serving: string;
  /** Its version's label. */
  readonly version?: string | undefined;
  /** The rows' key. */
  readonly key: string;
  /** The partition's index. */
  readonly partition: number;
}

eventTypes.add('sequence:step');

const aCost: Rule = {
  check: (value) => typeof value === 'number' && value > 0,
  allowed: 'a number above 0',
};

const noEffect =
  (option: string, valueOf: (facts: Facts) => unknown, why: string): Combination =>
  (facts) => {
    const value = facts.runner.sequence && valueOf(facts);
    return (
      value !== undefined &&
      `${option} ${formatValue(value)} has no effect on a sequence, where ${why}; leave it out`
    );
  };

export const sequences: Feature = {
  ofModel: {
    sequence: groupOf({
      joins: groupOf({ rows: whole(1, Number.MAX_SAFE_INTEGER), cost: aCost }),
      maxCost: aCost,
    }),
  },
  combinations: [
    ({ runner: { file, sequence } }) =>
      file !== undefined &&
      sequence !== undefined &&
      `sequence ${formatValue(sequence)} has no effect on a model file, which has no steps; run its ` +
        'session in a file (useFile) or class',
    noEffect(
      'batchSize',
      ({ definition: { batchSize } }) => (typeof batchSize === 'number' ? undefined : batchSize),
      'it is the number of places',
    ),
    noEffect(
      'batchTimeout',
      ({ definition }) => definition.batchTimeout,
      'a row joins as soon as a place is free',
    ),
    noEffect(
      'batchKeys',
      ({ definition }) =>
        definition.batchKeys?.find((key) => isRecord(key) && Object.keys(key).length > 1),
      'all keys share the places of a partition',
    ),
    noEffect(
      'recovery.isolateFailures',
      ({ definition }) => definition.recovery?.isolateFailures,
      'a step never runs again',
    ),
  ],
  continuousOf({ batchSize = DEFAULT_BATCH_SIZE }, { sequence }): SequenceLimits | undefined {
    return (
      sequence && {
        kind: 'sequences',
        capacity: batchSize as number,
        reports: 'sequence:step' satisfies SequenceStepEvent['type'],
        joinRows: sequence.joins?.rows ?? Infinity,
        joinCost: sequence.joins?.cost ?? Infinity,
        maxCost: sequence.maxCost ?? Infinity,
      }
    );
  },
};

export function openSequences(
  limits: SequenceLimits,
  ...site: Parameters<OpenPartition>
): SequencePartition {
  return new SequencePartition(...site, limits);
}
