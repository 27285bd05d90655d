/** One caller of a shared call. */
export interface JoinedCall<T, First> {
  /** The result or error of the work; or the reason for which this caller has left before. */
  readonly reply: Promise<T>;
  /** Whether another caller started the work. */
  readonly joined: boolean;
  /** The value that the first caller brought. */
  readonly first: First;
  /**
   * Rejects this caller's reply with the reason. The work is aborted when the last caller has left.
   */
  readonly leave: (reason: unknown) => void;
}

/**
 * Runs work once for all concurrent callers with the same identity, like `singleflight` of Go. A
 * caller that arrives after the work has ended starts new work.
 */
export class SingleFlight<T, First = undefined> {
  private readonly calls = new Map<string | symbol, InFlightCall<T, First>>();

  /** The number of works under way. */
  get size(): number {
    return this.calls.size;
  }

  /**
   * Joins the work under way for the identity, or starts it. The signal for `start` aborts when no
   * caller waits any more.
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

/** Settles the reply of one caller. */
interface Waiter<T> {
  resolve(value: T): void;
  reject(error: unknown): void;
}

class InFlightCall<T, First> {
  private readonly waiters = new Set<Waiter<T>>();
  private readonly left = new AbortController();

  constructor(
    private readonly first: First,
    /** Removes it from the joinable works; called once. */
    private readonly remove: () => void,
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
      this.remove();
      this.left.abort(reason);
    }
  }

  private settle(finish: (taker: Waiter<T>) => void): void {
    if (this.waiters.size === 0) {
      return;
    }
    this.remove();
    this.waiters.forEach(finish);
    this.waiters.clear();
  }
}
