import { type DONE, Marked } from '../../core/partitions/batch-function.js';
import type { ContinuousPlan } from '../../core/partitions/engine.js';

/**
 * A model whose rows run step by step, each as long as it needs: rows join and leave between steps.
 * States stay where it runs. After Orca (Yu et al., OSDI 2022).
 */
export interface SequenceModel<Input, Value, State> {
  /**
   * Makes joining rows' states, such as a prompt's cache. An `Error` in the list fails its own
   * caller. If it throws, all joining rows fail.
   */
  start(
    inputs: readonly Input[],
    context: SequenceStart<Value>,
  ): readonly (State | Error)[] | Promise<readonly (State | Error)[]>;
  /**
   * Makes the next value of each present row, oldest first: a value, `last(value)`, `DONE`,
   * `PENDING`, or an `Error` that fails its own caller. If it throws, all these rows fail, and new
   * rows make the next step.
   */
  step(
    states: readonly State[],
    context: SequenceStep,
  ): readonly SequenceResult<Value>[] | Promise<readonly SequenceResult<Value>[]>;
  /** Frees a state; called once for each. */
  end?(state: State, reason: SequenceEnd): void | Promise<void>;
  /**
   * A row's cost after this many emitted values, such as its cached tokens: 0 or more. For
   * `sequence.maxCost` and `sequence.joins.cost`.
   */
  cost?(input: Input, values: number): number;
}

/** A sequence model of any types, with these inputs and step results. */
export interface AnySequenceModel<Inputs = never, Results = unknown> {
  /** See {@link SequenceModel}. */
  start(inputs: Inputs, context: SequenceStart<never>): unknown;
  /** See {@link SequenceModel}. */
  step(states: never, context: SequenceStep): Results;
  /** See {@link SequenceModel}. */
  end?(state: never, reason: SequenceEnd): unknown;
  /** See {@link SequenceModel}. */
  cost?(input: never, values: number): number;
}

/** More values, for callers that ask for them. */
export interface SequenceHooks {
  /**
   * Sends a hook's values, one per row of the call, to the callers that ask for it.
   *
   * @throws InvalidOutputError for another number of entries
   */
  readonly emit: (hook: string, values: readonly unknown[]) => void;
}

/** The second parameter of {@link SequenceModel.start}. */
export interface SequenceStart<Value = unknown> extends SequenceHooks {
  /**
   * Each row's emitted values: none, unless it was paused and starts again. Its next value follows
   * them.
   */
  readonly emitted: readonly (readonly Value[])[];
}

/** The second parameter of {@link SequenceModel.step}. */
export interface SequenceStep extends SequenceHooks {
  /** True if the rows differ from the previous step's. */
  readonly changed: boolean;
}

/** A step's result for one row. */
export type SequenceResult<Value> = Value | Last<Value> | typeof DONE | typeof PENDING | Error;

/**
 * Why a state ended. `ended`: the row had its last value. `cancelled`: no caller waits for it.
 * `failed`: an error. `paused`: the rows cost more than `maxCost`; this one starts again.
 */
export type SequenceEnd = 'ended' | 'cancelled' | 'failed' | 'paused';

/** A step's result for a row that stays and has no value yet, such as a prompt half read. */
export const PENDING: unique symbol = Symbol.for('nestjs-serving:pending') as never;

/** Marks a row's last value; made by {@link last}. */
export class Last<Value> extends Marked<Value> {}

/** A row's last value: ends the row in this step, without a later `DONE`. */
export function last<Value>(value: Value): Last<Value> {
  return new Last(value);
}

export interface SequenceLimits extends ContinuousPlan {
  /** Limit of rows that join before one step. */
  readonly joinRows: number;
  /** Limit of their cost; the first may cost more. */
  readonly joinCost: number;
  /** Limit of a partition's rows together. */
  readonly maxCost: number;
}
