import { Inject } from '@nestjs/common';

/** A serving's name, or a definition, which has a name. */
type ServingName = string | { readonly name: string };

const PREFIX = 'Serving:';

/** Nest shows the token in its error where nothing provides the serving. */
const SUFFIX =
  ' (of servings in ServingModule.forRoot or forFeature, of names in forRootAsync, or of remotes ' +
  'in ServingClusterModule)';

/** The injection token of a serving's handle; override it to test without a model. */
export function getServingToken(serving: ServingName): string {
  return PREFIX + (typeof serving === 'string' ? serving : serving.name) + SUFFIX;
}

/** The serving's name if the token belongs to one. */
export function servingNameOf(token: unknown): string | undefined {
  return typeof token === 'string' && token.startsWith(PREFIX) && token.endsWith(SUFFIX)
    ? token.slice(PREFIX.length, -SUFFIX.length)
    : undefined;
}

/**
 * Injects the typed handle of a serving:
 * `@InjectServing('embedder') private readonly embedder: Serving<string, Float32Array>`.
 */
export function InjectServing(serving: ServingName): ParameterDecorator & PropertyDecorator {
  return Inject(getServingToken(serving));
}
