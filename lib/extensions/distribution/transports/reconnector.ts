import { Logger } from '@nestjs/common';
import {
  catchError,
  concat,
  defer,
  finalize,
  from,
  map,
  mergeMap,
  type Observable,
  of,
  repeat,
  retry,
  type Subscription,
  tap,
  throwError,
  timeout,
  timer,
} from 'rxjs';
import { messageOf } from '../../../doors/text.js';
import type { Address } from '../transport.js';
import type { HandshakeResult } from './handshake.js';
import { type Endpoint, endpointName } from './peers.js';

export interface ConnectAttempt {
  readonly opened: Promise<HandshakeResult>;
  /** An error that `opened` may not report. */
  readonly failure: unknown;
  end(): void;
}

/** Milliseconds. */
const OPENING = 5_000;
/**
 * Limit of the random pause in milliseconds. It doubles with each failure, but stays short: by
 * default calls wait 2 s for a node.
 */
const FIRST_PAUSE = 100;
const LONGEST_PAUSE = 1_500;

/** Milliseconds without warnings: nodes start together. */
const STARTING = 10_000;
/** Milliseconds until we redial an endpoint that led to this node; doubles up to a minute. */
const OWN_PAUSE = 2_000;
const LONGEST_OWN_PAUSE = 60_000;
const NOT_THERE = /ECONNREFUSED|ENOTFOUND|EAI_AGAIN|EHOSTUNREACH/;

/** Keeps a connection to every listed endpoint, even after it leaves the list. */
export class Reconnector {
  private readonly logger = new Logger('ServingTransport');
  private readonly kept = new Map<string, Subscription>();
  private readonly subscription: Subscription;

  constructor(
    endpoints: Observable<readonly Endpoint[]>,
    private readonly own: Address,
    private readonly dial: (endpoint: Endpoint) => ConnectAttempt,
    private readonly closed: (address: Address) => Promise<void> | undefined,
  ) {
    this.subscription = endpoints.subscribe((list) => this.follow(list));
  }

  stop(): void {
    this.subscription.unsubscribe();
    this.follow([]);
  }

  private follow(list: readonly Endpoint[]): void {
    const listed = new Map(list.map((endpoint) => [endpointName(endpoint), endpoint]));
    for (const [name, subscription] of this.kept) {
      if (!listed.has(name)) {
        this.kept.delete(name);
        subscription.unsubscribe();
      }
    }
    for (const [name, endpoint] of listed) {
      if (!this.kept.has(name)) {
        this.kept.set(name, this.keep(name, endpoint).subscribe());
      }
    }
  }

  /**
   * Dials again after each end or failure; later if the endpoint is this node, as it may change.
   */
  private keep(name: string, endpoint: Endpoint): Observable<Address> {
    let failures = 0;
    let owns = 0;
    let hasWarned = false;
    const startedBy = performance.now() + STARTING;
    const isStarting = (error: unknown): boolean =>
      performance.now() < startedBy && NOT_THERE.test(messageOf(error));
    const pause = (): Observable<0> =>
      timer(Math.random() * Math.min(LONGEST_PAUSE, FIRST_PAUSE * 2 ** failures));
    return this.reach(endpoint).pipe(
      mergeMap((address) => {
        if (address !== this.own) {
          owns = 0;
          return concat(of(address), this.endOfLink(address));
        }
        if (owns++ === 0) {
          this.logger.log(
            `The peer ${name} is this node itself. It is dialled again now and then, in case it ` +
              'is a balancer or name that leads elsewhere',
          );
        }
        return of(address);
      }),
      repeat({
        delay: () => {
          failures = 0;
          return owns > 0
            ? timer(Math.min(LONGEST_OWN_PAUSE, OWN_PAUSE * 2 ** (owns - 1)))
            : pause();
        },
      }),
      tap(() => (hasWarned = false)),
      retry({
        delay: (error: unknown) => {
          if (!hasWarned && !(error instanceof UnwantedError) && !isStarting(error)) {
            hasWarned = true;
            this.logger.warn(
              `There is no connection to the node at ${name}; it is retried without end. ` +
                messageOf(error),
            );
          }
          failures++;
          return pause();
        },
      }),
    );
  }

  private reach(endpoint: Endpoint): Observable<Address> {
    return defer(() => {
      const dialling = this.dial(endpoint);
      return from(dialling.opened).pipe(
        timeout({
          first: OPENING,
          with: () => throwError(() => new Error(`It has not answered within ${OPENING} ms`)),
        }),
        map(({ address }) => address),
        catchError((error: unknown) => throwError(() => dialling.failure ?? error)),
        finalize(() => dialling.end()),
      );
    });
  }

  private endOfLink(address: Address): Observable<never> {
    return defer(async () => {
      const closed = this.closed(address);
      if (!closed) {
        throw new UnwantedError();
      }
      await closed;
    }).pipe(mergeMap(() => []));
  }
}

/** The other end has another connection, not open here yet or closed unnoticed. */
class UnwantedError extends Error {}
