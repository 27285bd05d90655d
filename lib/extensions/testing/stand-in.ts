import type {
  AllowedSizesOptions,
  ClassRunner,
  ExistingRunner,
  ExternalRunner,
  FileRunner,
  FunctionRunner,
  ModelRunner,
  RecoveryOptions,
  ServingOptions,
} from '../../index.js';
import { sessionOptionsOf } from '../../internal.js';

type RunOption = Exclude<
  | keyof ModelRunner
  | keyof FunctionRunner
  | keyof FileRunner
  | keyof ClassRunner
  | keyof ExistingRunner
  | keyof ExternalRunner,
  keyof ServingOptions
>;

const RUN_OPTIONS = {
  model: true,
  signature: true,
  isolation: true,
  blockingLimit: true,
  useFactory: true,
  sequence: true,
  useFile: true,
  useClass: true,
  useExisting: true,
} satisfies Record<RunOption, true>;

/** Options to replace the runner; keeps the callbacks. */
export function modelStandIn(definition: ServingOptions): ServingOptions {
  const kept = Object.entries(definition).filter(([option]) => !Object.hasOwn(RUN_OPTIONS, option));
  // Leaves out devices of other machines, warm-up, and replies from earlier runs.
  const { name, partitions, deduplication, recovery, rollout } = definition;
  return {
    ...Object.fromEntries(kept),
    name,
    rollout: rollout && { version: rollout.version },
    partitions: partitions === true ? 1 : partitions,
    warmUp: undefined,
    sessions: sessionOptionsOf(definition),
    deduplication: deduplication?.singleFlight ? { ...deduplication, cache: undefined } : undefined,
    recovery: recovery && recoveryStandIn(recovery, 'model' in definition),
  };
}

/** Only threads, processes and connections restart, and only models are idempotent by default. */
function recoveryStandIn(
  { idempotent, isolateFailures, retries, runTimeout }: RecoveryOptions,
  isModel: boolean,
): RecoveryOptions {
  return idempotent || !isModel
    ? { idempotent, isolateFailures, retries, runTimeout }
    : { idempotent, runTimeout };
}

/** Options to replace the whole serving: callers' inputs may not be tensors, and have no cost. */
export function servingStandIn(definition: ServingOptions): ServingOptions {
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
