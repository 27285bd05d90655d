import { copyInput, deepCopy } from '../../core/batch/deep-copy.js';
import type { Origin } from '../../core/context/call-context.js';
import {
  DeadlineExceededError,
  DeadlineTooShortError,
  InvalidServingError,
  isA,
} from '../../core/errors.js';
import type { CallRecorder } from '../../core/events/call-recorder.js';
import type {
  CallSharing,
  Run,
  SharedAnswer,
  SharedCall,
} from '../../core/execution/call-sharing.js';
import { copyOutput } from '../../core/execution/request.js';
import type { Due } from '../../core/execution/resolved-call-options.js';
import { formatValue } from '../../core/format.js';
import type { ReplyCache } from './reply-cache.js';

type SharedOutcome =
  | { readonly run: Run; isKept: boolean }
  | { readonly found: { readonly reply: unknown } }
  | Refusal;

interface Refusal {
  readonly refusal: unknown;
  /** Of the call that started the work. */
  readonly input: unknown;
  readonly terms: string;
  /** Deadline of the refused work; callers that joined since may have more time. */
  readonly deadline: number;
  readonly due: Due;
}

/** The latest deadline of a run's callers. */
class LatestDue implements Due {
  constructor(private latest: Due) {}

  get deadline(): number {
    return this.latest.deadline;
  }

  get deadlineError(): () => Error {
    return this.latest.deadlineError;
  }

  add(due: Due): void {
    this.latest = due.deadline > this.deadline ? due : this.latest;
  }
}

interface Lead {
  readonly recorder: CallRecorder | undefined;
  readonly due: LatestDue;
}

interface Sharing {
  readonly singleFlight: boolean;
  readonly keyOf: (input: unknown) => unknown;
}

/** Shares one run while it is under way, and a cache afterwards. */
export class SharedCalls implements CallSharing {
  private readonly singleFlight = new SingleFlight<SharedOutcome, Lead>();

  constructor(
    private readonly serving: string,
    private readonly sharing: Sharing,
    private readonly cache: ReplyCache | undefined,
  ) {}

  async answer(shared: SharedCall): Promise<SharedAnswer> {
    const { recorder, onStop, prepare, finish } = shared;
    const identity = this.identityOf(shared);
    // Copied together with the identity: the caller may change its input later.
    let seat = this.join(identity, shared, () => copyInput(shared.input));
    const own = seat.joined ? prepare?.() : undefined;
    own?.catch(() => {});
    let landing = await seat.reply.finally(onStop(seat.leave));
    while ('refusal' in landing) {
      const { input, refusal, due } = landing;
      const hasSameTerms = landing.terms === shared.terms;
      if (!seat.joined || (hasSameTerms && !hasMoreTime(shared.due, landing))) {
        throw refusal;
      }
      // A caller is admitted by its own terms: one call tries for all with the same.
      seat = this.join(
        identity,
        shared,
        () => input,
        hasSameTerms ? due : shared.due,
        shared.terms,
      );
      landing = await seat.reply.finally(onStop(seat.leave));
    }
    if ('found' in landing) {
      return { answer: deepCopy(landing.found.reply), answeredBy: 'cache' };
    }
    const { call, reply } = landing.run;
    const output = copyOutput(reply.rows);
    recorder?.answered();
    const answer = await finish((await own) ?? call, output, reply);
    if (!landing.isKept && typeof identity === 'string') {
      landing.isKept = true;
      void this.cache?.keep(identity, answer);
    }
    return seat.joined ? { answer, answeredBy: 'single-flight' } : { answer };
  }

  /** Calls not found in the cache are on their way. */
  async idle(): Promise<void> {
    await this.cache?.idle();
  }

  private join(
    identity: string | symbol,
    shared: SharedCall,
    inputOf: () => unknown,
    due = shared.due,
    terms?: string,
  ): JoinedCall<SharedOutcome, Lead> {
    const { recorder } = shared;
    const first = { recorder, due: new LatestDue(due) };
    const caller = shared.caller?.id.toString();
    const flight = this.sharing.singleFlight ? flightOf(identity, terms, caller) : Symbol('alone');
    const seat = this.singleFlight.join(flight, first, (left) =>
      this.runShared(identity, inputOf(), shared, first.due, left),
    );
    if (seat.joined) {
      seat.first.due.add(due);
      if (recorder) {
        seat.first.recorder?.joinedBy(recorder);
      }
    }
    return seat;
  }

  private async runShared(
    identity: string | symbol,
    input: unknown,
    { run, terms }: SharedCall,
    due: Due,
    left: AbortSignal,
  ): Promise<SharedOutcome> {
    const found =
      this.cache && typeof identity === 'string' ? await this.cache.find(identity) : undefined;
    if (found) {
      return { found };
    }
    left.throwIfAborted();
    let isAdmitted = false;
    const running = run(input, left, due, () => (isAdmitted = true));
    const { deadline } = due;
    try {
      return { run: await running, isKept: false };
    } catch (error) {
      if (isAdmitted) {
        throw error;
      }
      return { refusal: error, input, terms, deadline, due };
    }
  }

  /** A unique symbol for a call that shares nothing. */
  private identityOf({ input, origin, key }: SharedCall): string | symbol {
    const identity = this.sharing.keyOf(input);
    if (identity === undefined) {
      return Symbol('alone');
    }
    if (typeof identity !== 'string') {
      throw new InvalidServingError(
        `Serving "${this.serving}": deduplication.key must return a string, or undefined for ` +
          `an input that shares with no other; it returned ${formatValue(identity)}`,
      );
    }
    return identityOfCall({ origin, key, input: identity });
  }
}

/** True if the work was refused for its deadline, and the call has more time. */
function hasMoreTime({ deadline }: Due, refused: Refusal): boolean {
  const { refusal } = refused;
  const isLate = isA(refusal, DeadlineTooShortError) || isA(refusal, DeadlineExceededError);
  return isLate && deadline > refused.deadline;
}

/** Calls of a batch's function share only with each other: their batch must not wait for itself. */
function flightOf(
  identity: string | symbol,
  terms: string | undefined,
  caller: string | undefined,
): string | symbol {
  const isPlain = terms === undefined && caller === undefined;
  return isPlain || typeof identity === 'symbol' ? identity : textOf([identity, terms, caller]);
}

/** A store may hold other versions' replies. */
export interface VersionIdentity {
  readonly serving: string;
  /** Undefined for a model: its content identifies it, and nodes may label it differently. */
  readonly label: string | undefined;
  /** Hash of a model or module; undefined for the application's code. */
  readonly content: string | undefined;
}

interface CallIdentity {
  /** Set only in a serving that separates origins. */
  readonly origin: Origin | undefined;
  readonly key: string | undefined;
  readonly input: string;
}

/** Identifies a call of one version, for single flight and the reply cache alike. */
function identityOfCall({ origin, key, input }: CallIdentity): string {
  return textOf([origin, key, input]);
}

export function cacheKeyOf({ serving, label, content }: VersionIdentity, call: string): string {
  return `nestjs-serving:${textOf([serving, label, content])},${call}`;
}

/**
 * Writes each part with its length, or `-` if it is missing: two different lists never give the
 * same text, whatever callers put into them.
 */
function textOf(parts: readonly (string | undefined)[]): string {
  return parts.map((part) => (part === undefined ? '-' : `${part.length}:${part}`)).join(',');
}

export interface JoinedCall<T, First> {
  readonly reply: Promise<T>;
  readonly joined: boolean;
  readonly first: First;
  /** Rejects this caller's reply. When the last caller has left, the work is aborted. */
  readonly leave: (reason: unknown) => void;
}

/**
 * Runs work once for all concurrent callers with the same identity, like Go's `singleflight`.
 * Callers after the work's end start new work.
 */
export class SingleFlight<T, First = undefined> {
  private readonly calls = new Map<string | symbol, InFlightCall<T, First>>();

  get size(): number {
    return this.calls.size;
  }

  /** @param start its signal aborts when no caller waits */
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

interface Waiter<T> {
  resolve(value: T): void;
  reject(error: unknown): void;
}

class InFlightCall<T, First> {
  private readonly waiters = new Set<Waiter<T>>();
  private readonly left = new AbortController();

  constructor(
    private readonly first: First,
    /** Called once. */
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
