import { encodeValue, type EncodedValue } from '../wire/values.js';
import { FrameError } from '../wire/prelude.js';
import { defaultWireLimits } from '../wire/limits.js';

/**
 * What one end knows of a call. Packets between two nodes can be lost while both are alive, as when
 * the route between two brokers breaks, and nothing may follow that would show it: the last chunk
 * of a stream, a reply, a credit, a cancellation. So the caller regularly sends a `check` with its
 * calls, the owner answers with their `status`, and also sends that by itself. Both arrive after
 * everything that was sent before them.
 *
 * In a check: the number of the call; the events that were acknowledged; the elements of a lazy
 * input that were sent, or -1 minus these after its end. In a status: the number; the events that
 * were sent, or -1 for a call that is not known; the elements that were acknowledged, or -1 before
 * the first was asked for.
 */
export type CallState = readonly [call: number, events: number, inputs: number];

export function encodeStates(states: readonly CallState[]): EncodedValue {
  return encodeValue(Float64Array.from(states.flat()), defaultWireLimits);
}

/** @throws FrameError when they are no such states */
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
