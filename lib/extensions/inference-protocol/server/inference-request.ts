import type { Tensor } from 'onnxruntime-common';
import { InvalidInputError, type Origin } from '../../../index.js';
import { type AbortSignalLike } from '../../../doors/calls.js';
import { LONGEST_DELAY } from '../../../doors/options.js';
import { formatValue } from '../../../doors/text.js';

/** 64-bit integers may be bigints. */
export type ParameterValue = string | number | boolean | bigint;

export type Parameters = ReadonlyMap<string, ParameterValue>;

export interface InferenceRequest {
  readonly model: string;
  /** The server chooses if it is empty. */
  readonly version?: string | undefined;
  readonly id?: string | undefined;
  readonly parameters: Parameters;
  /** BYTES elements that aren't UTF-8 are Uint8Arrays in a string tensor. */
  readonly inputs: ReadonlyMap<string, Tensor>;
  readonly inputParameters?: ReadonlyMap<string, Parameters>;
  /** Undefined for all. */
  readonly outputs?: ReadonlyMap<string, Parameters> | undefined;
}

export interface InferenceCaller {
  readonly signal?: AbortSignalLike | undefined;
  /** Milliseconds since 1970. */
  readonly deadline?: number | undefined;
  readonly tenant?: string | undefined;
  readonly origin?: Origin | undefined;
}

export interface InferenceReply {
  readonly model: string;
  readonly version: string;
  readonly id: string | undefined;
  readonly outputs: ReadonlyMap<string, Tensor>;
}

export interface StreamedReply extends InferenceReply {
  /** A decoupled model's last reply has no outputs. */
  readonly isFinal: boolean;
}

/** Maps to a serving's default priority, 0. */
const MIDDLE_PRIORITY = 3;
const HIGHEST = 10;

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

/** The protocol's highest is 1, its default 0. */
function priorityOf(parameters: Parameters): number | undefined {
  const priority = wholeIn(parameters, 'priority');
  return priority === 0 ? undefined : Math.max(MIDDLE_PRIORITY - priority, -HIGHEST);
}

/** The earlier of deadline and `timeout` (microseconds), in milliseconds. */
function timeoutOf(parameters: Parameters, { deadline }: InferenceCaller): number | undefined {
  const timeout = wholeIn(parameters, 'timeout') / 1000 || Infinity;
  const left = deadline === undefined ? Infinity : Math.max(deadline - Date.now(), 0);
  const least = Math.min(timeout, left);
  return least > LONGEST_DELAY ? undefined : least;
}

/** @throws InvalidInputError */
export function wholeIn(parameters: Parameters, name: string): number {
  const value = parameters.get(name) ?? 0;
  const number = typeof value === 'bigint' ? Number(value) : value;
  return typeof number === 'number' && Number.isInteger(number) && number >= 0
    ? number
    : refuse(name, value, 'a whole number of 0 or more');
}

export interface SequenceStep {
  /** A number and the string of its digits differ. */
  readonly key: string;
  readonly id: string | number | bigint;
  readonly isFirst: boolean;
  readonly isLast: boolean;
}

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

/** @throws InvalidInputError */
export function flagIn(parameters: Parameters, name: string): boolean {
  const value = parameters.get(name) ?? false;
  return typeof value === 'boolean' ? value : refuse(name, value, 'true or false');
}

function refuse(name: string, value: ParameterValue, allowed: string): never {
  throw new InvalidInputError(
    `The parameter "${name}" is ${formatValue(value)}; allowed is ${allowed}`,
  );
}
