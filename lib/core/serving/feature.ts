import type { Combination } from '../definition/combinations.js';
import type { Rules } from '../definition/option-rules.js';
import { resolveDefinition } from '../definition/resolve-definition.js';
import type { ResolvedServing } from '../definition/resolved-serving.js';
import type {
  RunnerOptions,
  ServingDefinition,
  ServingOptions,
} from '../definition/serving-definition.js';
import type { SharingOpener } from '../execution/call-sharing.js';
import type { ContinuousPlan, Openers } from '../partitions/engine.js';

/**
 * A capability of the servings whose definition asks for it; a call of any other passes none of its
 * code. Its folder adds its options to the types of the core.
 */
export interface Feature {
  /** The rules of its options, by name. */
  readonly rules: Rules;
  /** What its options exclude. */
  readonly combinations: readonly Combination[];
  /** The rules of its options of `model`. */
  readonly ofModel?: Rules;
  /** Batches rows continuously, by an opener of that kind. */
  continuousOf?(serving: ServingOptions, model: RunnerOptions): ContinuousPlan | undefined;
  /**
   * Lets calls share their runs.
   *
   * @throws InvalidServingError if its options need an application, and there is none
   */
  sharingOf?(serving: ServingOptions, provide: Provide | undefined): SharingOpener | undefined;
  /** A batched method's options, whose functions get arguments, as those of a serving. */
  ofMethod?(options: object, calls: MethodCalls): Partial<ServingOptions>;
  /** A stand-in's options, without what earlier runs left. */
  ofStandIn?(serving: ServingOptions): Partial<ServingOptions>;
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

/** All features as one. */
export class Features {
  readonly rules: Rules;
  readonly ofModel: Rules;
  readonly combinations: readonly Combination[];

  constructor(
    private readonly all: readonly Feature[],
    readonly openers: Openers,
  ) {
    this.rules = Object.assign({}, ...all.map(({ rules }) => rules)) as Rules;
    this.ofModel = Object.assign({}, ...all.map(({ ofModel }) => ofModel)) as Rules;
    this.combinations = all.flatMap(({ combinations }) => combinations);
  }

  /** @throws InvalidServingError naming the serving, the option, its value, and the allowed values */
  resolve(definition: ServingDefinition): ResolvedServing {
    return resolveDefinition(definition, this);
  }

  /** The first feature that would batch the rows continuously does. */
  continuousOf(serving: ServingOptions, model: RunnerOptions): ContinuousPlan | undefined {
    return this.all.flatMap((each) => each.continuousOf?.(serving, model) ?? []).at(0);
  }

  /** The first feature that would share the calls does. */
  sharingOf(serving: ServingOptions, provide?: Provide): SharingOpener | undefined {
    return this.all.flatMap((each) => each.sharingOf?.(serving, provide) ?? []).at(0);
  }

  ofMethod(options: object, calls: MethodCalls): Partial<ServingOptions> {
    return Object.assign({}, ...this.all.map((each) => each.ofMethod?.(options, calls)));
  }

  ofStandIn(serving: ServingOptions): Partial<ServingOptions> {
    return Object.assign({}, ...this.all.map((each) => each.ofStandIn?.(serving)));
  }
}
