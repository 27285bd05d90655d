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
import { LocalServing } from './local-serving.js';
import type { ReplyStore } from '../deduplication/reply-cache.js';
import { DEFAULT_BLOCKING_LIMIT } from '../definition/option-rules.js';
import {
  isExternal,
  modelOf,
  moduleOf,
  runnerOf,
  resolveDefinition,
} from '../definition/resolve-definition.js';
import type { ResolvedServing } from '../definition/resolved-serving.js';
import { changedDefinition, type VersionPlan } from '../rollout/version-loader.js';
import type { SequenceLimits } from '../partitions/sequence/sequence-model.js';
import type { Isolation } from '../partitions/worker/worker.partition.js';
import type { ServingDefinition, ServingOptions } from '../definition/serving-definition.js';

/**
 * Creates a serving from its definition, not started: `await serving.start()`, then call it, then
 * `await serving.close()`.
 *
 * Inside Nest the module does all this. `handlerOf` returns a class serving's handler; by default
 * its class is constructed without arguments. `storeOf` returns the cache manager for
 * `deduplication.cache`.
 *
 * @throws InvalidServingError when the definition is invalid
 */
export function createServing<Input, Output, Result, Info>(
  definition: ServingDefinition<Input, Output, Result, Info>,
  handlerOf?: () => AnyHandler,
  storeOf?: () => ReplyStore,
): LocalServing<Input, Output> {
  const erased = definition as ServingDefinition;
  const options = resolveDefinition(erased);
  const callbacks = erased as ServingOptions;
  if (options.sharing?.cache && !storeOf) {
    throw new InvalidServingError(
      `Serving "${options.name}": deduplication.cache needs the application that has the cache ` +
        'manager; use ServingModule',
    );
  }
  const { engine, next } = planOf(erased, options, handlerOf);
  return new LocalServing<Input, Output>(options, callbacks, engine, storeOf, undefined, next);
}

/** A version's plan. Only files and external models have a `next` version. */
function planOf(
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
          return planOf(changed, resolveDefinition(changed));
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
type AnyHandler = ServingHandler | SequenceHandler;

function classEngine(handlerOf: () => AnyHandler, sequence: SequenceLimits | undefined): Engine {
  return sequence
    ? sequenceEngine(handlerOf as () => SequenceHandler, sequence)
    : handlerEngine(handlerOf as () => ServingHandler);
}
