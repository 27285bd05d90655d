import { encodeValue, type EncodedValue } from '../wire/values.js';
import { FrameError } from '../wire/prelude.js';
import { defaultWireLimits } from '../wire/limits.js';

/**
 * One end's view of a call. Nothing else reveals that the last packet was lost, so the caller
 * regularly sends a `check` of its calls. The owner answers with a `status`, which it also sends
 * unprompted. Both arrive after everything sent before.
 *
 * In a check: the call's number; the acknowledged events; a lazy input's sent elements, or -1 minus
 * these after its end. In a status: the number; the sent events, or -1 for an unknown call; the
 * acknowledged elements, or -1 before the input was requested.
 */
export type CallState = readonly [call: number, events: number, inputs: number];

export function encodeStates(states: readonly CallState[]): EncodedValue {
  return encodeValue(Float64Array.from(states.flat()), defaultWireLimits);
}

/** @throws FrameError for anything but a list of states */
export function statesIn(value: unknown): readonly CallState[] {
  if (!(value instanceof Float64Array) || value.length % 3 !== 0) {
    throw new FrameError('The states of calls are not a list of triples');
  }
  return Array.from({ length: value.length / 3 }, (_, i) => [
    value[3 * i]!,
    value[3 * i + 1]!,
    value[3 * i + 2]!,
  ]);
}
