import { type EncodedValue, encodeValue } from '../wire/values.js';
import { FrameError } from '../wire/prelude.js';
import { defaultWireLimits } from '../wire/limits.js';

/** A power of two, like each later size. */
const FEWEST = 64;

/**
 * A Map replaces its table every few calls. Each old table refers to the next, so minor collections
 * can't free those after an old one.
 */
export class CallTable<Call extends { readonly call: number }> {
  private slots: (Call | undefined)[] = emptySlots(FEWEST);
  private readonly others = new Map<number, Call>();
  private count = 0;

  get size(): number {
    return this.count;
  }

  nextAfter(call: number): number {
    let next = call + 1;
    while (this.slots[this.slotOf(next)] !== undefined) {
      next++;
    }
    return next;
  }

  get(call: number): Call | undefined {
    const found = this.slots[this.slotOf(call)];
    return found?.call === call ? found : this.others.get(call);
  }

  add(added: Call): void {
    this.delete(added.call);
    if (++this.count > this.slots.length / 2) {
      this.grow();
    }
    this.put(added);
  }

  /** Keeps a later call with the same number. */
  remove(ended: Call): void {
    if (this.get(ended.call) === ended) {
      this.delete(ended.call);
    }
  }

  delete(call: number): void {
    const slot = this.slotOf(call);
    if (this.slots[slot]?.call === call) {
      this.slots[slot] = undefined;
      this.count--;
    } else if (this.others.delete(call)) {
      this.count--;
    }
  }

  /** Snapshot: callers may change the table. */
  all(): Call[] {
    return [...this.slots.filter((call) => call !== undefined), ...this.others.values()];
  }

  private grow(): void {
    const calls = this.all();
    this.slots = emptySlots(2 * this.slots.length);
    this.others.clear();
    calls.forEach((call) => this.put(call));
  }

  private put(call: Call): void {
    const slot = this.slotOf(call.call);
    if (this.slots[slot] === undefined) {
      this.slots[slot] = call;
    } else {
      this.others.set(call.call, call);
    }
  }

  /** Modulo: numbers may exceed 32 bits. */
  private slotOf(call: number): number {
    return call % this.slots.length;
  }
}

function emptySlots<T>(length: number): (T | undefined)[] {
  return Array.from({ length }, () => undefined);
}

/**
 * One end's view of a call. Nothing else reveals that the last packet was lost, so the caller
 * regularly sends a `check`, and the owner a `status`, also unprompted. Both arrive after
 * everything sent before.
 *
 * A check has the call's number; the acknowledged events; a lazy input's sent elements, or -1 minus
 * these after its end. A status has the number; the sent events, or -1 for an unknown call; the
 * acknowledged elements, or -1 before the input was requested.
 */
export type CallState = readonly [call: number, events: number, inputs: number];

export function encodeStates(states: readonly CallState[]): EncodedValue {
  return encodeValue(Float64Array.from(states.flat()), defaultWireLimits);
}

/** @throws FrameError */
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
