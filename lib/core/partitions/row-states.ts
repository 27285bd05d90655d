import type { CallingBatch } from '../context/call-cycles.js';
import type { Partition } from './partition.js';

/** The call has one row, and runs after all earlier turns. */
export interface StateTurn {
  readonly id: number;
  /** Earlier turns whose caller got the reply. */
  readonly steps: number;
  /** Batch that runs it, or the last one; undefined if its function calls no servings. */
  runner: CallingBatch | undefined;
  /**
   * @param rows undefined for rows that the call gives one by one
   * @throws InvalidInputError unless it is one
   */
  check(rows?: number): void;
  /** Error if the state was lost with its partition's worker. */
  lossOn(partition: Partition): Error | undefined;
}

export function turnsOf(turns: readonly StateTurn[]): StateRows {
  return { ids: turns.map(({ id }) => id), steps: turns.map(({ steps }) => steps) };
}

export interface StateRows {
  readonly ids: readonly number[];
  /** Earlier steps of each state. */
  readonly steps: readonly number[];
}

interface Kept<State> {
  steps: number;
  state: State | undefined;
  /** Serves a caller that got no reply and repeats the last step. */
  previous: State | undefined;
}

/**
 * States stay where their batches run. A step replaces the state once it succeeds. If its reply is
 * lost (a deadline, an output that can't be sent), it runs again from the state before.
 */
export class RowStates<State> {
  private readonly kept = new Map<number, Kept<State>>();

  get size(): number {
    return this.kept.size;
  }

  begin({ ids, steps }: StateRows): StateStep<State> {
    const kept = ids.map((id, row) => this.keptAt(id, steps[row]!));
    return new StateStep(kept, steps);
  }

  /** A running step keeps no new states for them. */
  end(ids: readonly number[]): void {
    ids.forEach((id) => this.kept.delete(id));
  }

  private keptAt(id: number, steps: number): Kept<State> {
    let kept = this.kept.get(id);
    if (!kept) {
      kept = { steps, state: undefined, previous: undefined };
      this.kept.set(id, kept);
    }
    return kept;
  }
}

export class StateStep<State> {
  /** Undefined before a state's first step. */
  readonly states: readonly (State | undefined)[];

  constructor(
    private readonly kept: readonly Kept<State>[],
    private readonly steps: readonly number[],
  ) {
    this.states = kept.map(({ steps: made, state, previous }, row) =>
      made > steps[row]! ? previous : state,
    );
  }

  keep(states: readonly (State | undefined)[], succeeded: (row: number) => boolean): void {
    this.kept.forEach((kept, row) => {
      if (succeeded(row)) {
        kept.previous = this.states[row];
        kept.state = states[row];
        kept.steps = this.steps[row]! + 1;
      }
    });
  }
}
