import { UnknownServingError } from '../errors.js';
import type { ServingOptions } from './serving-definition.js';
import { formatValue } from '../format.js';

/** A serving by name, or by its definition, which also gives its types. */
export type NamedServing<Input, Output> = string | ServingOptions<Input, Output>;

/**
 * A serving of this application, or else of another node. `local`: only of this application;
 * `distributed`: of any node of the cluster, this one included.
 */
export type ServingReference<Input, Output> =
  | NamedServing<Input, Output>
  | {
      /** A serving of this application. */
      readonly local: NamedServing<Input, Output>;
    }
  | {
      /** A serving of any node. */
      readonly distributed: NamedServing<Input, Output>;
    };

/** A reference, read. */
export interface Reference {
  readonly name: string;
  readonly side: 'local' | 'distributed' | undefined;
  /** `distribution.preprocess` of a definition. */
  readonly preprocess: ((input: unknown) => unknown) | undefined;
}

/**
 * Reads the reference of a serving, which may come from a client.
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
  const { name, distribution } = serving as ServingOptions;
  const preprocess =
    distribution?.preprocess && ((input: unknown) => distribution.preprocess!(input));
  return { name, side, preprocess };
}
