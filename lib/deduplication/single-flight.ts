/** The place of one call in a flight. */
export interface Seat<T, First> {
  /** What the flight has given or failed of; or, where its call has left before, the reason for that. */
  readonly reply: Promise<T>;
  /** Whether another call had begun the flight. */
  readonly joined: boolean;
  /** What the call brought that began it. */
  readonly first: First;
  /** Answers the call with the reason. When the last has left, the flight is given up. */
  readonly leave: (reason: unknown) => void;
}

/**
 * Joins calls of the same identity while the first of them is under way: the work is done once, and all get what it gives. A call
 * that comes once it is done begins the next flight.
 */
export class Flights<T, First = undefined> {
  private readonly flights = new Map<string | symbol, Flight<T, First>>();

  /** How many are under way. */
  get size(): number {
    return this.flights.size;
  }

  /** A seat in the flight that is under way, or else in one that begins with `start`, whose signal says that nobody waits any more. */
  join(identity: string | symbol, first: First, start: (left: AbortSignal) => Promise<T>): Seat<T, First> {
    const known = this.flights.get(identity);
    if (known) {
      return known.seat(true);
    }
    const flight = new Flight<T, First>(first, () => this.flights.delete(identity));
    this.flights.set(identity, flight);
    const seat = flight.seat(false);
    flight.begin(start);
    return seat;
  }
}

/** What settles the reply of a seat. */
interface Taker<T> {
  resolve(value: T): void;
  reject(error: unknown): void;
}

class Flight<T, First> {
  private readonly takers = new Set<Taker<T>>();
  private readonly left = new AbortController();

  constructor(
    private readonly first: First,
    /** Takes it from those that can be joined; called once. */
    private readonly forget: () => void,
  ) {}

  begin(start: (left: AbortSignal) => Promise<T>): void {
    const work = new Promise<T>((resolve) => resolve(start(this.left.signal)));
    work.then(
      (value) => this.land((taker) => taker.resolve(value)),
      (error: unknown) => this.land((taker) => taker.reject(error)),
    );
  }

  seat(joined: boolean): Seat<T, First> {
    let taker!: Taker<T>;
    const reply = new Promise<T>((resolve, reject) => (taker = { resolve, reject }));
    this.takers.add(taker);
    return { reply, joined, first: this.first, leave: (reason) => this.leave(taker, reason) };
  }

  private leave(taker: Taker<T>, reason: unknown): void {
    if (!this.takers.delete(taker)) {
      return;
    }
    taker.reject(reason);
    if (this.takers.size === 0) {
      this.forget();
      this.left.abort(reason);
    }
  }

  private land(tell: (taker: Taker<T>) => void): void {
    if (this.takers.size === 0) {
      return;
    }
    this.forget();
    this.takers.forEach(tell);
    this.takers.clear();
  }
}
