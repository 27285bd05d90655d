/** The slots of a new table; a power of two, as after each growth. */
const FEWEST = 64;

/**
 * Calls by their numbers.
 *
 * A Map leaves an old table behind after every few calls, which refers to the calls of then and to
 * the next table. Once one of them is old, the young generation frees none of those that follow.
 */
export class CallTable<Call extends { readonly call: number }> {
  private slots: (Call | undefined)[] = emptySlots(FEWEST);
  /** Calls whose slot another call has. */
  private readonly others = new Map<number, Call>();
  private count = 0;

  get size(): number {
    return this.count;
  }

  /** The first number after this one whose slot is free. */
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

  /** Adds a call, in place of one with the same number. */
  add(added: Call): void {
    this.delete(added.call);
    if (++this.count > this.slots.length / 2) {
      this.grow();
    }
    this.put(added);
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

  /** All calls; some may be added or deleted meanwhile. */
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

  /** Numbers may have more than 32 bits. */
  private slotOf(call: number): number {
    return call % this.slots.length;
  }
}

function emptySlots<T>(length: number): (T | undefined)[] {
  return Array.from({ length }, () => undefined);
}
