import { type Channel, channel } from 'node:diagnostics_channel';
import { merge, type Observable, Subject } from 'rxjs';
import { Counters } from './counters.js';
import { type ServingEvent, batchEnd, type BatchLabels, batchStart } from './serving-event.js';
import type { BatchObserver, BatchRecord } from '../batching/batcher.js';
import type { QueuedRequest } from '../batching/queued-request.js';

/** The event of a type. */
export type EventOf<Type extends ServingEvent['type']> = Extract<
  ServingEvent,
  { readonly type: Type }
>;

/** Where the events of one type go. */
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
 * What a serving tells its observers, here and on the channels of `node:diagnostics_channel`:
 * `nestjs-serving:batch:end` and its like. No event is made that nobody would see.
 */
export class EventHub {
  private readonly channels: Readonly<Record<ServingEvent['type'], EventChannel>>;
  readonly all$: Observable<ServingEvent>;
  private readonly callStarts: EventChannel;
  private readonly callEnds: EventChannel;
  /** Counted whether or not somebody observes. */
  readonly counters = new Counters();
  private calls = 0;
  private batches = 0;

  /** With a `parent`, the hub shares the observers and the numbers of that, and counts apart. */
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

  /** Whether somebody observes when calls start or end; asked for every call. */
  get observesCalls(): boolean {
    return this.callStarts.isObserved || this.callEnds.isObserved;
  }

  /** Whether somebody observes events of the type. */
  isObserved(type: ServingEvent['type']): boolean {
    return this.channels[type].isObserved;
  }

  /** A number for one more call. */
  nextCall(): number {
    return this.parent ? this.parent.nextCall() : ++this.calls;
  }

  /** A number for one more batch. */
  nextBatch(): number {
    return this.parent ? this.parent.nextBatch() : ++this.batches;
  }

  emit(event: ServingEvent): void {
    this.channels[event.type].emit(event);
  }

  /** Ends the events; those of a hub with a parent end with the parent. */
  complete(): void {
    if (this.parent) {
      return;
    }
    Object.values(this.channels).forEach(({ subject }) => subject.complete());
  }
}

/**
 * Counts every batch, and emits events when it starts and when it ends, where somebody observes
 * them; only then are its labels made.
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
