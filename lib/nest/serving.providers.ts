import type { Provider } from '@nestjs/common';
import { ModuleRef } from '@nestjs/core';
import { InvalidServingError } from '../core/errors.js';
import type { ServingHandler } from '../core/partitions/engine.js';
import { getServingToken } from './serving.decorator.js';
import {
  moduleRules,
  SERVING_MODULE_OPTIONS,
  type ServingModuleOptions,
} from './serving.module-definition.js';
import { checkOptions } from '../core/definition/option-rules.js';
import { checkName, runnerOf } from '../core/definition/resolve-definition.js';
import type { Provide } from '../core/serving/feature.js';
import type { LocalServing } from '../core/serving/local-serving.js';
import { createServing } from '../features/features.js';
import type { ServingDefinition } from '../core/definition/serving-definition.js';

/** A class serving's handler is a provider, so Nest injects its dependencies. */
export function servingProviders(definitions: readonly ServingDefinition[]): Provider[] {
  return definitions.flatMap((definition): Provider[] => {
    const token = getServingToken(definition);
    const { useClass } = runnerOf(definition);
    if (!useClass) {
      return [
        {
          provide: token,
          inject: [ModuleRef],
          useFactory: (moduleRef: ModuleRef) => servingOf(definition, moduleRef),
        },
      ];
    }
    const handlerToken = getHandlerToken(definition.name);
    return [
      { provide: handlerToken, useClass },
      {
        provide: token,
        inject: [handlerToken, ModuleRef],
        useFactory: (handler: ServingHandler, moduleRef: ModuleRef) =>
          createServing(definition, () => handler, providerFrom(moduleRef)),
      },
    ];
  });
}

export function getHandlerToken(name: string): string {
  return `ServingHandler:${name}`;
}

export function asyncServingProviders(names: readonly string[]): Provider[] {
  const definitions: Provider = {
    provide: DEFINITIONS,
    inject: [SERVING_MODULE_OPTIONS],
    useFactory: (options: ServingModuleOptions) => {
      checkOptions('The factory of ServingModule.forRootAsync', options, moduleRules.factory);
      return definitionsByName(names, options.servings ?? []);
    },
  };
  const servings = names.map((name) => ({
    provide: getServingToken(name),
    inject: [DEFINITIONS, ModuleRef],
    useFactory: (byName: ReadonlyMap<string, ServingDefinition>, moduleRef: ModuleRef) =>
      servingOf(byName.get(name)!, moduleRef),
  }));
  return [definitions, ...servings];
}

const DEFINITIONS = Symbol('serving definitions');

function definitionsByName(
  names: readonly string[],
  definitions: readonly ServingDefinition[],
): ReadonlyMap<string, ServingDefinition> {
  namesOf('The factory of ServingModule.forRootAsync', definitions);
  const byName = new Map(definitions.map((definition) => [definition.name, definition]));
  if (byName.size !== names.length || names.some((name) => !byName.has(name))) {
    const defined = [...byName.keys()];
    throw new InvalidServingError(
      `The factory of ServingModule.forRootAsync defines [${defined.join(', ')}], ` +
        `but "names" lists [${names.join(', ')}]; the two must be the same. Write ` +
        `ServingModule.forRootAsync({ names: [${defined.map((name) => `'${name}'`).join(', ')}], ... })`,
    );
  }
  for (const definition of definitions) {
    const { useClass } = runnerOf(definition);
    if (useClass) {
      throw new InvalidServingError(
        `Serving "${definition.name}": forRootAsync cannot create ${useClass.name}, ` +
          'which is known only once the factory has run; ' +
          'make the class a provider of a module and name it with useExisting',
      );
    }
  }
  return byName;
}

function servingOf(definition: ServingDefinition, moduleRef: ModuleRef): LocalServing {
  const { useExisting } = runnerOf(definition);
  if (useExisting === undefined) {
    return createServing(definition, undefined, providerFrom(moduleRef));
  }
  // Looked up at the start, when every provider exists.
  const handlerOf = (): ServingHandler => moduleRef.get(useExisting, { strict: false });
  return createServing(definition, handlerOf, providerFrom(moduleRef));
}

export function providerFrom(moduleRef: ModuleRef): Provide {
  return (token) => moduleRef.get<unknown>(token, { strict: false });
}

/** @throws InvalidServingError for a missing definition or name, and for duplicate names */
export function namesOf(caller: string, definitions: readonly ServingDefinition[]): string[] {
  const names = definitions.map((definition) => {
    checkName(caller, definition);
    return definition.name;
  });
  const twice = names.find((name, i) => names.indexOf(name) !== i);
  if (twice !== undefined) {
    throw new InvalidServingError(
      `Serving "${twice}" is registered more than once; names are unique in an application`,
    );
  }
  return names;
}
