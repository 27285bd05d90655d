import { InvalidServingError } from '../errors.js';
import { formatValue } from '../format.js';
import type { SequenceLimits } from '../partitions/sequence/sequence-model.js';
import { DEFAULT_BATCH_SIZE, groupOf, isRecord, type Rule, whole } from './option-rules.js';
import type { KeyOptions } from './resolved-serving.js';
import type { CodeOptions, ServingOptions } from './serving-definition.js';

const aCost: Rule = {
  check: (value) => typeof value === 'number' && value > 0,
  allowed: 'a number above 0',
};

/** The option `sequence` of all runners but models. */
export const ofSequence: Rule = groupOf({
  joins: groupOf({ rows: whole(1, Number.MAX_SAFE_INTEGER), cost: aCost }),
  maxCost: aCost,
});

/** The option `sequence` of a model. */
export const noSequence: Rule = {
  check: () => false,
  allowed: 'nothing here: a model file has no steps; run its session in a file (useFile) or class',
};

/**
 * The limits of a serving of sequences.
 *
 * @throws InvalidServingError for options that have no effect on sequences
 */
export function sequenceOf(
  owner: string,
  { batchSize = DEFAULT_BATCH_SIZE, batchTimeout, batchKeys = [], ...others }: ServingOptions,
  { sequence, sessions }: CodeOptions,
): SequenceLimits | undefined {
  if (!sequence) {
    return undefined;
  }
  const { recovery = {} } = others;
  const places = typeof batchSize === 'number' ? batchSize : 0;
  const ownOptions = batchKeys.filter((key) => isRecord(key) && Object.keys(key).length > 1);
  const needless: [string, unknown, string][] = [
    ['batchSize', places === batchSize ? undefined : batchSize, 'it is the number of places'],
    ['batchTimeout', batchTimeout, 'a row joins as soon as a place is free'],
    ['batchKeys', ownOptions[0], 'all keys share the places of a partition'],
    ['sessions', sessions, 'each call has a state of its own'],
    ['recovery.isolateFailures', recovery.isolateFailures, 'a step never runs again'],
  ];
  for (const [option, value, why] of needless) {
    if (value !== undefined) {
      throw new InvalidServingError(
        `${owner}: ${option} ${formatValue(value)} has no effect on a sequence, where ${why}; ` +
          'leave it out',
      );
    }
  }
  const { joins: { rows: joinRows = Infinity, cost: joinCost = Infinity } = {} } = sequence;
  const { maxCost = Infinity } = sequence;
  return { places, joinRows, joinCost, maxCost };
}

/** The options of a key in a serving of sequences: each row is a batch, which joins the others. */
export function keyOptionsOfSequence({ places }: SequenceLimits): KeyOptions {
  return { batchSize: 1, batchTimeout: 0, runSize: 1, places };
}
