import { InvalidOutputError, isError } from '../errors.js';
import {
  type BatchContext,
  type BatchInfo,
  type BatchListener,
  contextOf,
} from './batch-function.js';
import { type PartitionResult, STEPPED } from './partition.js';
import type { SessionStates } from './session-states.js';

type Result = PartitionResult | typeof STEPPED;

/**
 * Runs a batch function with the states of its rows' sessions, where there are any, and keeps the
 * states that it leaves. A row whose result is an error keeps the state that it had.
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
