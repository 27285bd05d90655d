import { type Channel, channel } from 'node:diagnostics_channel';
import { EMPTY, merge, type Observable, Subject } from 'rxjs';
import type { ServingEvent, ServingEvents } from './serving-event.js';
import { InvalidServingError, isServingError } from '../errors.js';
import { formatValue } from '../format.js';
import type { AbortSignalLike } from '../context/call-context.js';

export type EventOf<Type extends ServingEvent['type']> = ServingEvents[Type];

class EventChannel {
  readonly subject = new Subject<ServingEvent>();
  private readonly channel: Channel;

  constructor(type: string) {
    this.channel = channel(`nestjs-serving:${type}`);
  }

  get isObserved(): boolean {
    return this.subject.observed || this.channel.hasSubscribers;
  }

  emit(event: ServingEvent): void {
    this.subject.next(event);
    this.channel.publish(event);
  }
}

type Channels = ReadonlyMap<string, EventChannel>;

/** Hides calls that the serving doesn't count. */
const SILENT: Channels = new Map();

const TYPES = ['call:start', 'call:end', 'batch:start', 'batch:end', 'partition:change'] as const;

/** Features add theirs. */
export const eventTypes = new Set<string>(TYPES);

/** @throws InvalidServingError */
export function checkEventType(type: string): void {
  if (!eventTypes.has(type)) {
    throw new InvalidServingError(
      `There are no events ${formatValue(type)}; observe ${[...eventTypes].join(', ')}`,
    );
  }
}

/**
 * A serving's events, for observers and on `node:diagnostics_channel`, such as
 * `nestjs-serving:batch:end`. Unobserved events are not created.
 */
export class EventHub {
  private channels: Channels;
  readonly all$: Observable<ServingEvent>;
  private callStarts: EventChannel | undefined;
  private callEnds: EventChannel | undefined;
  /** Excludes children. */
  counters = new Counters();
  private readonly children = new Set<EventHub>();
  private calls = 0;
  private batches = 0;

  /**
   * Shares a `parent`'s observers and numbers, not its counters.
   *
   * @param report event type of this serving's partitions only
   */
  constructor(
    private readonly parent?: EventHub,
    readonly version?: string,
    report?: string,
  ) {
    const types = report === undefined ? TYPES : [...TYPES, report];
    const channels =
      parent?.channels ?? new Map(types.map((type) => [type, new EventChannel(type)] as const));
    this.channels = channels;
    this.callStarts = channels.get('call:start');
    this.callEnds = channels.get('call:end');
    this.all$ = merge(...[...channels.values()].map(({ subject }) => subject));
  }

  /** Completes immediately for an event that the serving doesn't have. */
  of<Type extends ServingEvent['type']>(type: Type): Observable<EventOf<Type>> {
    checkEventType(type);
    return (this.channels.get(type)?.subject.asObservable() ?? EMPTY) as Observable<never>;
  }

  /** Read for every call. */
  get observesCalls(): boolean {
    const { callStarts, callEnds } = this;
    return callStarts !== undefined && (callStarts.isObserved || callEnds!.isObserved);
  }

  isObserved(type: string): boolean {
    return this.channels.get(type)?.isObserved ?? false;
  }

  nextCall(): number {
    return this.parent ? this.parent.nextCall() : ++this.calls;
  }

  nextBatch(): number {
    return this.parent ? this.parent.nextBatch() : ++this.batches;
  }

  emit(event: ServingEvent): void {
    this.channels.get(event.type)?.emit(event);
  }

  /** Includes children that left. */
  get totals(): ServingCounters {
    const totals = new Counters();
    [this, ...this.children].forEach(({ counters }) => totals.add(counters));
    return totals.now;
  }

  childOf(version: string): EventHub {
    const child = new EventHub(this, version);
    this.children.add(child);
    return child;
  }

  /** Emits and counts nothing until it is shown. */
  hiddenChildOf(version: string): EventHub {
    const child = new EventHub(this, version);
    child.observe(SILENT);
    return child;
  }

  show(): void {
    const { parent } = this;
    if (parent && !parent.children.has(this)) {
      this.counters.clear();
      this.observe(parent.channels);
      parent.children.add(this);
    }
  }

  private observe(channels: Channels): void {
    this.channels = channels;
    this.callStarts = channels.get('call:start');
    this.callEnds = channels.get('call:end');
  }

  /** Later counts, from consumers that still read, go to the parent. */
  leave(): void {
    const { parent, counters } = this;
    if (parent?.children.delete(this)) {
      parent.counters.add(counters);
      this.counters = parent.counters;
    }
  }

  /** A hub with a parent completes with it. */
  complete(): void {
    if (this.parent) {
      return;
    }
    this.channels.forEach(({ subject }) => subject.complete());
  }
}

/** A serving's totals since the application started. */
export interface ServingCounters {
  /** Answered calls, including streams that their consumer left. */
  readonly answered: number;
  /**
   * Refused or failed calls by error code, such as `SERVING_OVERLOADED`; `SERVING_CANCELLED` if
   * their signal ended them, `OTHER` for other packages' errors.
   */
  readonly failed: Readonly<Record<string, number>>;
  /** Batches that have run, including pieces of `run`. */
  readonly batches: number;
  /** Batches that failed. */
  readonly failedBatches: number;
  /** Rows in batches that have run. Rows that ran again count again. */
  readonly rows: number;
  /** Padding rows in batches. */
  readonly padding: number;
}

export class Counters {
  answered = 0;
  private batches = 0;
  private failedBatches = 0;
  private rows = 0;
  private padding = 0;
  private readonly failures = new Map<string, number>();

  /** @param signal the call's */
  ended(
    failure: { readonly error: unknown } | undefined,
    signal: AbortSignalLike | undefined,
  ): void {
    if (failure) {
      this.failed(failure.error, signal);
    } else {
      this.answered++;
    }
  }

  ran(rows: number, padding: number, hasFailed: boolean): void {
    this.batches++;
    this.rows += rows;
    this.padding += padding;
    this.failedBatches += hasFailed ? 1 : 0;
  }

  clear(): void {
    this.answered = this.batches = this.failedBatches = this.rows = this.padding = 0;
    this.failures.clear();
  }

  add({ answered, batches, failedBatches, rows, padding, failures }: Counters): void {
    this.answered += answered;
    this.batches += batches;
    this.failedBatches += failedBatches;
    this.rows += rows;
    this.padding += padding;
    failures.forEach((count, code) =>
      this.failures.set(code, (this.failures.get(code) ?? 0) + count),
    );
  }

  get now(): ServingCounters {
    const { answered, batches, failedBatches, rows, padding, failures } = this;
    return {
      answered,
      failed: Object.fromEntries(failures),
      batches,
      failedBatches,
      rows,
      padding,
    };
  }

  private failed(error: unknown, signal: AbortSignalLike | undefined): void {
    const code = codeOf(error, signal);
    this.failures.set(code, (this.failures.get(code) ?? 0) + 1);
  }
}

function codeOf(error: unknown, signal: AbortSignalLike | undefined): string {
  if (signal?.aborted && signal.reason === error) {
    return 'SERVING_CANCELLED';
  }
  return isServingError(error) ? error.code : 'OTHER';
}
