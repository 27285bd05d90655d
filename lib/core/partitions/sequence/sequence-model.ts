import type { DONE } from '../batch-function.js';

/**
 * A model whose rows run step by step, each for as long as it needs: rows join and leave between
 * two steps. Its states stay where it runs. After Orca (Yu et al., OSDI 2022).
 */
export interface SequenceModel<Input, Value, State> {
  /**
   * Makes the states of rows that join, such as a prompt's cache. An `Error` in the list fails
   * its own caller. If it throws, all rows that were to join fail.
   */
  start(
    inputs: readonly Input[],
    context: SequenceStart<Value>,
  ): readonly (State | Error)[] | Promise<readonly (State | Error)[]>;
  /**
   * Makes the next value of each row that is present, the oldest first: a value, or
   * `last(value)`, `DONE`, or an `Error` that fails its own caller. If it throws, all of these rows
   * fail, and new rows make the next step.
   */
  step(
    states: readonly State[],
    context: SequenceStep,
  ): readonly SequenceResult<Value>[] | Promise<readonly SequenceResult<Value>[]>;
  /** Frees a state; called once for each that `start` has made. */
  end?(state: State, reason: SequenceEnd): void | Promise<void>;
  /**
   * The cost of a row that has emitted this many values, such as the tokens in its cache; for
   * `sequence.maxCost` and `sequence.joins.cost`. A number of 0 or more.
   */
  cost?(input: Input, values: number): number;
}

/** A sequence model of any types: of rows like these, and with these results of a step. */
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

/** Further values, for callers that ask for them. */
export interface SequenceHooks {
  /**
   * Sends the values of a hook, an entry for each row of the call, to the callers that ask for it.
   *
   * @throws InvalidOutputError for another number of entries
   */
  readonly emit: (hook: string, values: readonly unknown[]) => void;
}

/** The second parameter of {@link SequenceModel.start}. */
export interface SequenceStart<Value = unknown> extends SequenceHooks {
  /**
   * For each row the values that it has emitted: none, unless it was paused and starts again. Its
   * next value is the one after them.
   */
  readonly emitted: readonly (readonly Value[])[];
}

/** The second parameter of {@link SequenceModel.step}. */
export interface SequenceStep extends SequenceHooks {
  /** Whether other rows are present than in the step before. */
  readonly changed: boolean;
}

/** The result of a step for one row. */
export type SequenceResult<Value> = Value | Last<Value> | typeof DONE | Error;

/**
 * Why a state ended. `ended`: the row had its last value. `cancelled`: no caller waits for it.
 * `failed`: an error. `paused`: all rows together cost more than `maxCost`; the row starts again.
 */
export type SequenceEnd = 'ended' | 'cancelled' | 'failed' | 'paused';

/** Marks the last value of a row; made by {@link last}. */
export class Last<Value> {
  /** An output with a property `value` is no such mark for the compiler. */
  declare private readonly isLast: true;

  constructor(
    /** The last value of the row. */
    readonly value: Value,
  ) {}
}

/** The last value of a row: it ends with this step, and not with a `DONE` one step later. */
export function last<Value>(value: Value): Last<Value> {
  return new Last(value);
}

/** One step of sequences, as events report it. */
export interface SequenceStepRecord {
  /** The rows that were present. */
  readonly rows: number;
  /** The partition's rows that waited: to join, or to start again after a pause. */
  readonly waiting: number;
  /** Milliseconds that the model's `step` took. */
  readonly runTime: number;
}

/** The hook by which a loop reports its steps. No caller gets its values. */
export const STEPS = '\0steps';

/** The places of a partition, and what may join them. */
export interface SequenceLimits {
  /** Rows that a partition runs at the same time. */
  readonly places: number;
  /** The most rows that join before one step. */
  readonly joinRows: number;
  /** The most that rows may cost that join before one step; the first of them may cost more. */
  readonly joinCost: number;
  /** The most that a model's rows may cost together. */
  readonly maxCost: number;
}
