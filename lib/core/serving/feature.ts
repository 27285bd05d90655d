import type { AdmissionPolicy } from '../batching/admission.js';
import type { Combination } from '../definition/combinations.js';
import type { Rules } from '../definition/option-rules.js';
import { resolveDefinition, runnerOf } from '../definition/resolve-definition.js';
import type { ResolvedServing } from '../definition/resolved-serving.js';
import type {
  CodeOptions,
  RunnerOptions,
  ServingDefinition,
  ServingOptions,
} from '../definition/serving-definition.js';
import type { StatesOpener } from '../execution/kept-states.js';
import type { SharingOpener } from '../execution/call-sharing.js';
import type { PartitionOptions } from '../partitions/batch-function.js';
import type { ContinuousPlan, Engine, Openers } from '../partitions/engine.js';
import type { Rollout, VersionPolicies } from '../versions/version-policy.js';

/**
 * A capability of the servings whose definition asks for it; a call of any other passes none of its
 * code. Its folder adds its options to the types of the core.
 */
export interface Feature {
  /** The rules of its options, by name; `group.name` is an option of a group. */
  readonly rules?: Rules;
  /** Refuses options that exclude each other. */
  readonly combinations?: readonly Combination[];
  /** Refuses calls by more than the room in the queue. */
  admissionOf?(serving: ServingOptions): AdmissionPolicy | undefined;
  /** Lets versions share the calls, by their role. */
  readonly policies?: VersionPolicies;
  /**
   * Loads versions by itself.
   *
   * @throws InvalidServingError for versions that could never load
   */
  rolloutOf?(serving: ServingOptions, model: RunnerOptions): Rollout | undefined;
  /** The rules of its options of `model`. */
  readonly ofModel?: Rules;
  /** Opens the partitions of a model that it runs. */
  engineOf?(serving: string, model: RunnerOptions): Engine | undefined;
  /** One partition's options for each device, for `partitions: true`. */
  devicesOf?(session: PartitionOptions): readonly PartitionOptions[];
  /** Keeps states on partitions, for calls that take turns. */
  statesOf?(model: RunnerOptions): StatesOpener | undefined;
  /** Batches rows continuously, by an opener of that kind. */
  continuousOf?(serving: ServingOptions, model: RunnerOptions): ContinuousPlan | undefined;
  /**
   * Lets calls share their runs.
   *
   * @throws InvalidServingError if its options need an application that is missing
   */
  sharingOf?(serving: ServingOptions, provide: Provide | undefined): SharingOpener | undefined;
  /** A batched method's options, whose functions get arguments, as those of a serving. */
  ofMethod?(options: object, calls: MethodCalls): Partial<ServingOptions>;
  /** A stand-in's options, without what earlier runs left. */
  ofStandIn?(serving: ServingOptions): Partial<ServingOptions>;
  /** The options of a stand-in's `model`. */
  ofStandInModel?(model: RunnerOptions): CodeOptions;
}

/** Returns a provider of the application; throws if it has none. */
export type Provide = (token: string) => unknown;

export type OfArguments<Value> = (...args: never[]) => Value;

/** Reads the calls of a batched method. */
export interface MethodCalls {
  /** Applies `of` to a call's arguments. */
  ofCall<Value>(of: OfArguments<Value>): (call: unknown) => Value;
  /** Calls of different owners share nothing; empty for a class with one instance. */
  ownerOf(call: unknown): string;
}

/** The features' part of one serving's calls. */
export interface ServingParts {
  readonly sharing?: SharingOpener | undefined;
  readonly states?: StatesOpener | undefined;
  readonly admission?: readonly AdmissionPolicy[];
  readonly policies?: VersionPolicies;
  readonly rollout?: Rollout | undefined;
}

/** All features as one. */
export class Features {
  readonly rules: Rules;
  readonly ofModel: Rules;
  readonly combinations: readonly Combination[];
  private readonly policies: VersionPolicies;

  constructor(
    private readonly all: readonly Feature[],
    readonly openers: Openers,
  ) {
    this.rules = this.merged(({ rules }) => rules);
    this.ofModel = this.merged(({ ofModel }) => ofModel);
    this.policies = this.merged(({ policies }) => policies);
    this.combinations = all.flatMap(({ combinations = [] }) => combinations);
  }

  /** @throws InvalidServingError naming the serving, the option, its value, and the allowed values */
  resolve(definition: ServingDefinition): ResolvedServing {
    return resolveDefinition(definition, this);
  }

  engineOf(serving: string, model: RunnerOptions): Engine | undefined {
    return this.firstOf((each) => each.engineOf?.(serving, model));
  }

  devicesOf(session: PartitionOptions): readonly PartitionOptions[] | undefined {
    return this.firstOf((each) => each.devicesOf?.(session));
  }

  /** Takes each part from the first feature that has it. */
  partsOf(definition: ServingDefinition, provide?: Provide): ServingParts {
    const model = runnerOf(definition);
    return {
      sharing: this.firstOf((each) => each.sharingOf?.(definition, provide)),
      states: this.statesOf(model),
      admission: this.all.flatMap((each) => each.admissionOf?.(definition) ?? []),
      policies: this.policies,
      rollout: this.firstOf((each) => each.rolloutOf?.(definition, model)),
    };
  }

  statesOf(model: RunnerOptions): StatesOpener | undefined {
    return this.firstOf((each) => each.statesOf?.(model));
  }

  continuousOf(serving: ServingOptions, model: RunnerOptions): ContinuousPlan | undefined {
    return this.firstOf((each) => each.continuousOf?.(serving, model));
  }

  ofMethod(options: object, calls: MethodCalls): Partial<ServingOptions> {
    return this.merged((each) => each.ofMethod?.(options, calls));
  }

  ofStandIn(serving: ServingOptions): Partial<ServingOptions> {
    return this.merged((each) => each.ofStandIn?.(serving));
  }

  ofStandInModel(definition: { readonly model?: unknown }): CodeOptions {
    const model = runnerOf(definition);
    return this.merged((each) => each.ofStandInModel?.(model));
  }

  private merged<Part extends object>(part: (feature: Feature) => Part | undefined): Part {
    return Object.assign({}, ...this.all.map(part)) as Part;
  }

  private firstOf<Part>(part: (feature: Feature) => Part | undefined): Part | undefined {
    return this.all.map(part).find((found) => found !== undefined);
  }
}
