import { Inject } from '@nestjs/common';

/** A serving's name, or a definition, which has a name. */
export type ServingName = string | { readonly name: string };

const PREFIX = 'Serving:';

/** The injection token of a serving's handle; override it to test without a model. */
export function getServingToken(serving: ServingName): string {
  return PREFIX + (typeof serving === 'string' ? serving : serving.name);
}

/** The name of the serving that the token belongs to, if it belongs to one. */
export function servingNameOf(token: unknown): string | undefined {
  return typeof token === 'string' && token.startsWith(PREFIX)
    ? token.slice(PREFIX.length)
    : undefined;
}

/**
 * Injects the typed handle of a serving:
 * `@InjectServing('embedder') private readonly embedder: Serving<string, Float32Array>`.
 */
export function InjectServing(serving: ServingName): ParameterDecorator & PropertyDecorator {
  return Inject(getServingToken(serving));
}
