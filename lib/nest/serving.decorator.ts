import { Inject } from '@nestjs/common';
import { InvalidServingError } from '../core/errors.js';

type ServingName = string | { readonly name: string };

const PREFIX = 'Serving:';

/** Nest's error shows the token if nothing provides the serving. */
const SUFFIX =
  ' (of servings in ServingModule.forRoot or forFeature, of names in forRootAsync, or of remotes ' +
  'in ServingClusterModule)';

/**
 * The injection token of a serving's handle; override it to test without a model.
 *
 * @throws InvalidServingError for a definition that a circular import has left undefined
 */
export function getServingToken(serving: ServingName): string {
  const given: ServingName | undefined = serving;
  if (given === undefined) {
    throw new InvalidServingError(
      'A serving is injected whose definition is undefined here: its file and this one probably import ' +
        "each other; move the definition to a file of its own, or write its name: @InjectServing('name')",
    );
  }
  return PREFIX + (typeof given === 'string' ? given : given.name) + SUFFIX;
}

export function servingNameOf(token: unknown): string | undefined {
  return typeof token === 'string' && token.startsWith(PREFIX) && token.endsWith(SUFFIX)
    ? token.slice(PREFIX.length, -SUFFIX.length)
    : undefined;
}

/**
 * Injects a serving's typed handle:
 * `@InjectServing('embedder') private readonly embedder: Serving<string, Float32Array>`.
 */
export function InjectServing(serving: ServingName): ParameterDecorator & PropertyDecorator {
  return Inject(getServingToken(serving));
}
