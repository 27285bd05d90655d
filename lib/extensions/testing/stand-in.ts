import {
  type AllowedSizesOptions,
  InvalidServingError,
  type RecoveryOptions,
  type Runner,
  type ServingOptions,
} from '../../index.js';
import { type FunctionServingDefinition, isRecord } from '../../doors/options.js';
import { features } from '../../doors/servings.js';
import { formatValue } from '../../doors/text.js';

/** Definition whose runner may be missing, since a test replaces it. */
export type Replaced<Input = unknown, Output = unknown, Result = unknown> = ServingOptions<
  Input,
  Output,
  Result
> & { readonly model?: Runner };

/** @throws InvalidServingError naming the function that was given the value */
export function requireMember(value: unknown, member: string, given: string, wanted: string): void {
  if (!(isRecord(value) && member in value)) {
    throw new InvalidServingError(
      `${given} was given ${formatValue(value)}; give it ${wanted}. If it is imported, its file may ` +
        'import this one, too: in such a circle it is not defined yet',
    );
  }
}

/** Replaces the runner with a function; keeps the callbacks. */
export function modelStandIn(definition: Replaced): FunctionServingDefinition {
  const { rollout, partitions, recovery, ...kept } = definition;
  // Leaves out other machines' devices, and warm-up.
  return {
    ...kept,
    ...features.ofStandIn(definition),
    model: { useFactory: () => () => undefined, ...features.ofStandInModel(definition) },
    rollout: rollout && { version: rollout.version },
    partitions: partitions === true ? 1 : partitions,
    warmUp: undefined,
    recovery: recovery && recoveryStandIn(recovery),
  };
}

/** Only threads, processes and connections restart; only models are idempotent by default. */
function recoveryStandIn({
  idempotent,
  isolateFailures,
  retries,
  runTimeout,
}: RecoveryOptions): RecoveryOptions {
  return idempotent
    ? { idempotent, isolateFailures, retries, runTimeout }
    : { idempotent, runTimeout };
}

/** Replaces the whole serving: inputs may not be tensors, and have no cost. */
export function servingStandIn(definition: Replaced): FunctionServingDefinition {
  const { batchSize, ...shared } = modelStandIn(definition);
  return {
    ...shared,
    batchSize: withoutCost(batchSize),
    preprocess: undefined,
    postprocess: undefined,
    postprocessStream: undefined,
  };
}

function withoutCost(size: ServingOptions['batchSize']): ServingOptions['batchSize'] {
  const limits = typeof size === 'object' && !('length' in size) ? size : { rows: size };
  const { rows, latencyTarget } = limits as AllowedSizesOptions;
  return { rows: [rows ?? []].flat().at(-1), latencyTarget };
}
