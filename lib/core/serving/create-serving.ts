import { InvalidServingError } from '../errors.js';
import {
  type Engine,
  fileEngine,
  functionEngine,
  handlerEngine,
  sequenceEngine,
  type SequenceHandler,
  type ServingHandler,
} from '../partitions/engine.js';
import { inWorkers, modelEngine, onMainThread } from '../partitions/model-engine.js';
import type { Features, Provide } from './feature.js';
import { LocalServing } from './local-serving.js';
import { DEFAULT_BLOCKING_LIMIT } from '../definition/option-rules.js';
import { isExternal, modelOf, moduleOf, runnerOf } from '../definition/resolve-definition.js';
import type { ResolvedServing } from '../definition/resolved-serving.js';
import { changedDefinition, type VersionPlan } from '../rollout/version-loader.js';
import type { SequenceLimits } from '../partitions/sequence/sequence-model.js';
import type { Isolation } from '../partitions/worker/worker.partition.js';
import type { ServingDefinition, ServingOptions } from '../definition/serving-definition.js';

/** @throws InvalidServingError when the definition is invalid */
export function createServingWith(
  features: Features,
  definition: ServingDefinition,
  handlerOf?: () => AnyHandler,
  provide?: Provide,
): LocalServing {
  const options = features.resolve(definition);
  const callbacks = definition as ServingOptions;
  const sharing = features.sharingOf(callbacks, provide);
  const { engine, next } = planOf(features, definition, options, handlerOf);
  return new LocalServing(options, callbacks, engine, sharing, undefined, next);
}

/** A version's plan. Only files and external models have a `next` version. */
function planOf(
  features: Features,
  definition: ServingDefinition,
  options: ResolvedServing,
  handlerOf?: () => AnyHandler,
): VersionPlan {
  const { file, useFile } = runnerOf(definition);
  const isApart = isExternal(definition) || (file ?? useFile) !== undefined;
  return {
    options,
    engine: engineOf(definition, options, handlerOf),
    next: isApart
      ? (change) => {
          const changed = changedDefinition(definition, change);
          return planOf(features, changed, features.resolve(changed));
        }
      : undefined,
  };
}

function engineOf(
  definition: ServingDefinition,
  { name, sequence }: ResolvedServing,
  handlerOf?: () => AnyHandler,
): Engine {
  if (isExternal(definition)) {
    return definition.model.engineFor(definition).engine;
  }
  const {
    file,
    useFile,
    useFactory,
    useClass,
    isolation = 'thread',
    ...model
  } = runnerOf(definition);
  if (file !== undefined) {
    const {
      inputs = {},
      outputs = {},
      fetches,
      state,
      blockingLimit = DEFAULT_BLOCKING_LIMIT,
    } = model;
    return modelEngine(
      modelOf(name, { file, ...model }),
      { inputs, outputs, fetches, state },
      isolation === 'none' ? onMainThread(blockingLimit) : inWorkers(isolation),
    );
  }
  if (useFile !== undefined) {
    return fileEngine(moduleOf(name, useFile), isolation as Isolation, sequence, model.prepare);
  }
  if (useFactory) {
    return functionEngine(useFactory, sequence);
  }
  if (handlerOf) {
    return classEngine(handlerOf, sequence);
  }
  if (useClass) {
    return classEngine(() => new useClass() as AnyHandler, sequence);
  }
  throw new InvalidServingError(
    `Serving "${name}": useExisting needs the application that has the provider; use ServingModule`,
  );
}

/** With the option `sequence`, a sequence model. */
export type AnyHandler = ServingHandler | SequenceHandler;

function classEngine(handlerOf: () => AnyHandler, sequence: SequenceLimits | undefined): Engine {
  return sequence
    ? sequenceEngine(handlerOf as () => SequenceHandler, sequence)
    : handlerEngine(handlerOf as () => ServingHandler);
}
