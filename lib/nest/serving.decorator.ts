import { Inject } from '@nestjs/common';

type ServingName = string | { readonly name: string };

const PREFIX = 'Serving:';

/** Nest's error shows the token if nothing provides the serving. */
const SUFFIX =
  ' (of servings in ServingModule.forRoot or forFeature, of names in forRootAsync, or of remotes ' +
  'in ServingClusterModule)';

/** The injection token of a serving's handle; override it to test without a model. */
export function getServingToken(serving: ServingName): string {
  return PREFIX + (typeof serving === 'string' ? serving : serving.name) + SUFFIX;
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
