import { InvalidOutputError, isError } from '../errors.js';
import {
  type BatchContext,
  type BatchInfo,
  type BatchListener,
  contextOf,
} from './batch-function.js';
import { type PartitionResult, STEPPED } from './partition.js';

/** Each of a batch's rows is the next step of one session. */
export interface SessionRows {
  readonly ids: readonly number[];
  /** Steps that each session has made before. */
  readonly steps: readonly number[];
}

interface Kept<State> {
  steps: number;
  state: State | undefined;
  /** For a caller that got no reply and repeats the last step. */
  previous: State | undefined;
}

/**
 * Session states, where their batches run. A step replaces the state once it succeeds. If its reply
 * is lost (a deadline, an output that can't be sent), it runs again from the state before.
 */
export class SessionStates<State> {
  private readonly sessions = new Map<number, Kept<State>>();

  get size(): number {
    return this.sessions.size;
  }

  begin({ ids, steps }: SessionRows): SessionStep<State> {
    const kept = ids.map((id, row) => this.keptAt(id, steps[row]!));
    return new SessionStep(kept, steps);
  }

  /** Drops the sessions' states; a running step keeps no new ones for them. */
  end(ids: readonly number[]): void {
    ids.forEach((id) => this.sessions.delete(id));
  }

  private keptAt(id: number, steps: number): Kept<State> {
    let kept = this.sessions.get(id);
    if (!kept) {
      kept = { steps, state: undefined, previous: undefined };
      this.sessions.set(id, kept);
    }
    return kept;
  }
}

export class SessionStep<State> {
  /** Before the step; undefined before a session's first. */
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

type Result = PartitionResult | typeof STEPPED;

/**
 * Runs a batch function with its rows' session states, if any. A row whose result is an error keeps
 * its old state.
 *
 * @throws InvalidOutputError for a generator, whose rows have several results
 */
export function inSessions(
  states: SessionStates<unknown>,
  info: BatchInfo,
  listener: BatchListener,
  run: (context: BatchContext) => Result | Promise<Result>,
): Result | Promise<Result> {
  const { sessions, padding } = info;
  if (!sessions) {
    return run(contextOf(info, listener));
  }
  const step = states.begin(sessions);
  const own = [...step.states, ...Array.from({ length: padding }, () => undefined)];
  const finish = (result: Result): Result => {
    if (result === STEPPED) {
      throw new InvalidOutputError(
        'A step of a session has one result, and the batch function is a generator',
      );
    }
    const { output } = result;
    step.keep(own, (row) => !(Array.isArray(output) && isError(output[row])));
    return result;
  };
  const result = run(contextOf(info, listener, own));
  return result instanceof Promise ? result.then(finish) : finish(result);
}
