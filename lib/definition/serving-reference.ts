import { UnknownServingError } from '../errors.js';
import type { ServingOptions } from './serving-definition.js';
import { formatValue } from '../format.js';

/** A serving by name, or by its definition, which also gives its types. */
export type NamedServing<Input, Output> = string | ServingOptions<Input, Output>;

/**
 * A serving: that of this application if it has one, else that of another node; `local`: only that
 * of this application; `distributed`: by way of the cluster, which may lead back here.
 */
export type ServingReference<Input, Output> =
  | NamedServing<Input, Output>
  | { readonly local: NamedServing<Input, Output> }
  | { readonly distributed: NamedServing<Input, Output> };

/** What a reference says. */
export interface Reference {
  readonly name: string;
  readonly side: 'local' | 'distributed' | undefined;
  /** What a definition does to an input before it is sent to another node. */
  readonly preprocess: ((input: unknown) => unknown) | undefined;
}

/**
 * Reads what is to name a serving, which may come from anywhere.
 *
 * @throws UnknownServingError when it cannot be read
 */
export function readReference(reference: unknown): Reference {
  try {
    return sided(reference) ?? named(reference, undefined);
  } catch (cause) {
    throw new UnknownServingError(
      `There is no serving ${formatValue(reference)}, whose name cannot be read`,
      { cause },
    );
  }
}

function sided(reference: unknown): Reference | undefined {
  if (typeof reference !== 'object' || reference === null || 'name' in reference) {
    return undefined;
  }
  if ('local' in reference) {
    return named(reference.local, 'local');
  }
  return 'distributed' in reference ? named(reference.distributed, 'distributed') : undefined;
}

function named(serving: unknown, side: Reference['side']): Reference {
  if (typeof serving !== 'object' || serving === null) {
    return { name: serving as string, side, preprocess: undefined };
  }
  const definition = serving as ServingOptions;
  const preprocess =
    definition.distributedPreprocessing &&
    ((input: unknown) => definition.distributedPreprocessing!(input));
  return { name: definition.name, side, preprocess };
}
