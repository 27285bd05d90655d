import { LONGEST_DELAY } from '../definition/option-rules.js';
import { InvalidInputError } from '../errors.js';
import { formatValue } from '../format.js';
import type {
  InferenceCaller,
  InferenceRequest,
  Parameters,
  ParameterValue,
} from './inference-request.js';

/** The priority of the protocol that is the default of a serving; 1 is the highest. */
const MIDDLE_PRIORITY = 3;
const HIGHEST = 10;

/** The options of a call, from its request and its caller. */
export function callOptionsOf(
  { parameters, version }: Pick<InferenceRequest, 'parameters' | 'version'>,
  caller: InferenceCaller,
) {
  const { signal, tenant, origin } = caller;
  return {
    ...(version && { version }),
    priority: priorityOf(parameters),
    timeout: timeoutOf(parameters, caller),
    ...(signal && { signal }),
    ...(tenant !== undefined && { tenant }),
    ...(origin !== undefined && { origin }),
  };
}

/** 1 is the highest priority of the protocol, and 0 the default. */
function priorityOf(parameters: Parameters): number | undefined {
  const priority = wholeIn(parameters, 'priority');
  return priority === 0 ? undefined : Math.max(MIDDLE_PRIORITY - priority, -HIGHEST);
}

/** Milliseconds until the earlier of the deadline and the `timeout` in microseconds. */
function timeoutOf(parameters: Parameters, { deadline }: InferenceCaller): number | undefined {
  const timeout = wholeIn(parameters, 'timeout') / 1000 || Infinity;
  const left = deadline === undefined ? Infinity : Math.max(deadline - Date.now(), 0);
  const least = Math.min(timeout, left);
  return least > LONGEST_DELAY ? undefined : least;
}

/** A whole number, 0 where it is missing. */
function wholeIn(parameters: Parameters, name: string): number {
  const value = parameters.get(name) ?? 0;
  const number = typeof value === 'bigint' ? Number(value) : value;
  return typeof number === 'number' && Number.isInteger(number) && number >= 0
    ? number
    : refuse(name, value, 'a whole number of 0 or more');
}

/** A step of a sequence. */
export interface SequenceStep {
  /** The same for equal ids; differs for a number and the string of its digits. */
  readonly key: string;
  readonly id: string | number | bigint;
  readonly isFirst: boolean;
  readonly isLast: boolean;
}

/** The step that the parameters name; undefined for a request of no sequence. */
export function sequenceStepOf(parameters: Parameters): SequenceStep | undefined {
  const id = parameters.get('sequence_id') ?? '';
  const isFirst = flagIn(parameters, 'sequence_start');
  const isLast = flagIn(parameters, 'sequence_end');
  if (typeof id === 'boolean' || !(typeof id !== 'number' || Number.isSafeInteger(id))) {
    return refuse('sequence_id', id, 'a string, or a whole number; beyond 2 ** 53 as a string');
  }
  if (id === '' || id === 0 || id === 0n) {
    return undefined;
  }
  const key = typeof id === 'string' ? `s${id}` : `n${id}`;
  return { key, id, isFirst, isLast };
}

function flagIn(parameters: Parameters, name: string): boolean {
  const value = parameters.get(name) ?? false;
  return typeof value === 'boolean' ? value : refuse(name, value, 'true or false');
}

function refuse(name: string, value: ParameterValue, allowed: string): never {
  throw new InvalidInputError(
    `The parameter "${name}" is ${formatValue(value)}; allowed is ${allowed}`,
  );
}
