import { InvalidServingError } from '../errors.js';
import {
  type Engine,
  fileEngine,
  functionEngine,
  handlerEngine,
  openerOf,
  type OtherHandler,
  type ServingHandler,
  statefulEngine,
} from '../partitions/engine.js';
import type { Features, Provide } from './feature.js';
import { LocalServing } from './local-serving.js';
import { isExternal, moduleOf, runnerOf } from '../definition/resolve-definition.js';
import type { ResolvedServing } from '../definition/resolved-serving.js';
import { changedDefinition, type VersionPlan } from '../versions/version-loader.js';
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
  const parts = features.partsOf(definition, provide);
  const plan = planOf(features, definition, options, handlerOf);
  return new LocalServing(plan, callbacks, parts);
}

/** A version's plan. Only files and external models have a `next` version. */
function planOf(
  features: Features,
  definition: ServingDefinition,
  options: ResolvedServing,
  handlerOf?: () => AnyHandler,
): VersionPlan {
  const model = runnerOf(definition);
  const { file, useFile } = model;
  const isApart = isExternal(definition) || (file ?? useFile) !== undefined;
  return {
    options,
    model,
    engine: engineOf(features, definition, options, handlerOf),
    next: isApart
      ? (change) => {
          const changed = changedDefinition(definition, change);
          return planOf(features, changed, features.resolve(changed));
        }
      : undefined,
  };
}

function engineOf(
  features: Features,
  definition: ServingDefinition,
  { name, continuous }: ResolvedServing,
  handlerOf?: () => AnyHandler,
): Engine {
  if (isExternal(definition)) {
    return definition.model.engineFor(definition).engine;
  }
  const runner = runnerOf(definition);
  const engine = features.engineOf(name, runner);
  if (engine) {
    return engine;
  }
  const { useFile, useFactory, useClass, isolation = 'thread', prepare } = runner;
  if (useFile !== undefined) {
    return fileEngine(moduleOf(name, useFile), isolation as Isolation, continuous, prepare);
  }
  const open = openerOf(continuous, features.openers);
  if (useFactory) {
    return functionEngine(useFactory, open);
  }
  const handler = handlerOf ?? (useClass && (() => new useClass() as AnyHandler));
  if (handler) {
    return continuous
      ? statefulEngine(handler, open)
      : handlerEngine(handler as () => ServingHandler);
  }
  throw new InvalidServingError(
    `Serving "${name}": useExisting needs the application that has the provider; use ServingModule`,
  );
}

export type AnyHandler = ServingHandler | OtherHandler;
