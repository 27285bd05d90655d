import type {
  ClassServingDefinition,
  ExistingServingDefinition,
  FileServingDefinition,
  FunctionServingDefinition,
  KeyServingOptions,
  ModelServingDefinition,
  ServingOptions,
} from '../definition/serving-definition.js';

/** The options that say what runs the batches, and how. */
type RunOption = Exclude<
  | keyof ModelServingDefinition
  | keyof FunctionServingDefinition
  | keyof FileServingDefinition
  | keyof ClassServingDefinition
  | keyof ExistingServingDefinition,
  keyof ServingOptions
>;

const RUN_OPTIONS = {
  model: true,
  session: true,
  inputs: true,
  outputs: true,
  fetches: true,
  template: true,
  isolation: true,
  useFactory: true,
  useFile: true,
  restartDelay: true,
  maxRestarts: true,
  restartTimeout: true,
  useClass: true,
  useExisting: true,
} satisfies Record<RunOption, true>;

/**
 * The options of what stands in for a serving whose batches are no longer run by what its
 * definition says, and whose callbacks stay.
 */
export function modelStandIn(definition: ServingOptions): ServingOptions {
  const kept = Object.entries(definition).filter(([option]) => !Object.hasOwn(RUN_OPTIONS, option));
  // Not the devices of another machine, nothing that runs before the test does, and no replies from
  // before it.
  const partitions = definition.partitions === true ? 1 : definition.partitions;
  return {
    ...Object.fromEntries(kept),
    name: definition.name,
    partitions,
    warmUp: undefined,
    cache: undefined,
    // Unlike a model, a function is idempotent only where the definition says so.
    ...('model' in definition &&
      !definition.idempotent && { retries: undefined, isolateFailures: undefined }),
    ...(definition.cache && !definition.singleFlight && { identify: undefined }),
  };
}

/**
 * As {@link modelStandIn}, for a serving that is replaced as a whole: its rows are what callers
 * pass, which may not be tensors to pad.
 */
export function servingStandIn(definition: ServingOptions): ServingOptions {
  const { keyOptions = {}, ...shared } = modelStandIn(definition);
  const ofKeys = Object.entries(keyOptions).map(
    ([key, options]) => [key, unpadded(options)] as const,
  );
  return {
    ...unpadded(shared),
    keyOptions: Object.fromEntries(ofKeys),
    preprocess: undefined,
    postprocess: undefined,
    postprocessStream: undefined,
  };
}

function unpadded<Options extends KeyServingOptions>(options: Options): Options {
  return {
    ...options,
    batchSize: options.batchSize ?? options.allowedSizes?.at(-1),
    allowedSizes: undefined,
    pad: undefined,
  };
}
