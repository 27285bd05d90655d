import type {
  ClassServingDefinition,
  ExistingServingDefinition,
  FileServingDefinition,
  FunctionServingDefinition,
  KeyServingOptions,
  ModelServingDefinition,
  ServingOptions,
} from '../definition/serving-definition.js';

/** The options for the runner of a serving's batches. */
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

/** The options of a replacement for the runner of a serving, which keeps its callbacks. */
export function modelStandIn(definition: ServingOptions): ServingOptions {
  const kept = Object.entries(definition).filter(([option]) => !Object.hasOwn(RUN_OPTIONS, option));
  // Leaves out devices of other machines, warm-up, and replies from earlier runs.
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
 * Like {@link modelStandIn}, for a replacement of the whole serving: its rows are the callers'
 * inputs, which may be no tensors to pad.
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
