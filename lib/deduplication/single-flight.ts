/** The place of one call in a flight. */
export interface JoinedCall<T, First> {
  /**
   * What the flight has given or failed of; or, where its call has left before, the reason for
   * that.
   */
  readonly reply: Promise<T>;
  /** Whether another call had begun the flight. */
  readonly joined: boolean;
  /** What the call brought that began it. */
  readonly first: First;
  /** Answers the call with the reason. When the last has left, the flight is given up. */
  readonly leave: (reason: unknown) => void;
}

/**
 * Joins calls of the same identity while the first of them is under way: the work is done once, and
 * all get what it gives. A call that comes once it is done begins the next flight.
 */
export class SingleFlight<T, First = undefined> {
  private readonly calls = new Map<string | symbol, InFlightCall<T, First>>();

  /** How many are under way. */
  get size(): number {
    return this.calls.size;
  }

  /**
   * A seat in the flight that is under way, or else in one that begins with `start`, whose signal
   * says that nobody waits any more.
   */
  join(
    identity: string | symbol,
    first: First,
    start: (left: AbortSignal) => Promise<T>,
  ): JoinedCall<T, First> {
    const known = this.calls.get(identity);
    if (known) {
      return known.join(true);
    }
    const flight = new InFlightCall<T, First>(first, () => this.calls.delete(identity));
    this.calls.set(identity, flight);
    const seat = flight.join(false);
    flight.begin(start);
    return seat;
  }
}

/** What settles the reply of a seat. */
interface Waiter<T> {
  resolve(value: T): void;
  reject(error: unknown): void;
}

class InFlightCall<T, First> {
  private readonly waiters = new Set<Waiter<T>>();
  private readonly left = new AbortController();

  constructor(
    private readonly first: First,
    /** Takes it from those that can be joined; called once. */
    private readonly forget: () => void,
  ) {}

  begin(start: (left: AbortSignal) => Promise<T>): void {
    const work = new Promise<T>((resolve) => resolve(start(this.left.signal)));
    work.then(
      (value) => this.settle((taker) => taker.resolve(value)),
      (error: unknown) => this.settle((taker) => taker.reject(error)),
    );
  }

  join(joined: boolean): JoinedCall<T, First> {
    let taker!: Waiter<T>;
    const reply = new Promise<T>((resolve, reject) => (taker = { resolve, reject }));
    this.waiters.add(taker);
    return { reply, joined, first: this.first, leave: (reason) => this.leave(taker, reason) };
  }

  private leave(taker: Waiter<T>, reason: unknown): void {
    if (!this.waiters.delete(taker)) {
      return;
    }
    taker.reject(reason);
    if (this.waiters.size === 0) {
      this.forget();
      this.left.abort(reason);
    }
  }

  private settle(tell: (taker: Waiter<T>) => void): void {
    if (this.waiters.size === 0) {
      return;
    }
    this.forget();
    this.waiters.forEach(tell);
    this.waiters.clear();
  }
}
