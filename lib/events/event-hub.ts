import { type Channel, channel } from 'node:diagnostics_channel';
import { merge, type Observable, Subject } from 'rxjs';
import { Counters } from './counters.js';
import { type ServingEvent, batchEnd, type BatchLabels, batchStart } from './serving-event.js';
import type { BatchObserver, BatchRecord } from '../batching/batcher.js';
import type { QueuedRequest } from '../batching/queued-request.js';

/** The event with this type. */
export type EventOf<Type extends ServingEvent['type']> = Extract<
  ServingEvent,
  { readonly type: Type }
>;

/** The observers of one type of events. */
class EventChannel {
  readonly subject = new Subject<ServingEvent>();
  private readonly channel: Channel;

  constructor(type: ServingEvent['type']) {
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

/**
 * The events of a serving, for its observers and on the channels of `node:diagnostics_channel`,
 * such as `nestjs-serving:batch:end`. An event is created only if something observes its type.
 */
export class EventHub {
  private readonly channels: Readonly<Record<ServingEvent['type'], EventChannel>>;
  readonly all$: Observable<ServingEvent>;
  private readonly callStarts: EventChannel;
  private readonly callEnds: EventChannel;
  /** Always counted, observed or not. */
  readonly counters = new Counters();
  private calls = 0;
  private batches = 0;

  /** A hub with a `parent` shares its observers and numbers, and has counters of its own. */
  constructor(private readonly parent?: EventHub) {
    this.channels = parent?.channels ?? {
      'call:start': new EventChannel('call:start'),
      'call:end': new EventChannel('call:end'),
      'batch:start': new EventChannel('batch:start'),
      'batch:end': new EventChannel('batch:end'),
      'partition:change': new EventChannel('partition:change'),
    };
    this.callStarts = this.channels['call:start'];
    this.callEnds = this.channels['call:end'];
    this.all$ = merge(...Object.values(this.channels).map(({ subject }) => subject));
  }

  of<Type extends ServingEvent['type']>(type: Type): Observable<EventOf<Type>> {
    return this.channels[type].subject.asObservable() as Observable<never>;
  }

  /** Whether the starts or ends of calls are observed; asked for every call. */
  get observesCalls(): boolean {
    return this.callStarts.isObserved || this.callEnds.isObserved;
  }

  /** Whether events of the type are observed. */
  isObserved(type: ServingEvent['type']): boolean {
    return this.channels[type].isObserved;
  }

  /** The number of a new call. */
  nextCall(): number {
    return this.parent ? this.parent.nextCall() : ++this.calls;
  }

  /** The number of a new batch. */
  nextBatch(): number {
    return this.parent ? this.parent.nextBatch() : ++this.batches;
  }

  emit(event: ServingEvent): void {
    this.channels[event.type].emit(event);
  }

  /** Completes the events. A hub with a parent completes with it. */
  complete(): void {
    if (this.parent) {
      return;
    }
    Object.values(this.channels).forEach(({ subject }) => subject.complete());
  }
}

/**
 * Counts every batch. Emits events when a batch starts and ends, if they are observed; only then
 * its labels are computed.
 */
export function batchObserver<R extends QueuedRequest>(
  events: EventHub,
  labelsOf: (record: BatchRecord<R>) => BatchLabels,
): BatchObserver<R> {
  const { counters } = events;
  return {
    batchStarted(record) {
      if (events.isObserved('batch:start')) {
        events.emit(batchStart(record, labelsOf(record)));
      }
    },
    batchEnded(record, runTime, outcome) {
      if (!outcome.revoked) {
        counters.ran(record.rows, outcome.padding ?? 0, outcome.error !== undefined);
      }
      if (events.isObserved('batch:end')) {
        events.emit(batchEnd(record, labelsOf(record), runTime, outcome));
      }
    },
  };
}
