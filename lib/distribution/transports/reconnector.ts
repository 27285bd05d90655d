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
  takeWhile,
  tap,
  throwError,
  timeout,
  timer,
} from 'rxjs';
import { messageOf } from '../../errors.js';
import type { Address } from '../transport.js';
import type { HandshakeResult } from './handshake.js';
import type { Endpoint } from './peers.js';

/** An attempt to make a link with whoever is at an endpoint. */
export interface ConnectAttempt {
  readonly opened: Promise<HandshakeResult>;
  /** What is wrong with the connection, where `opened` does not say, or never ends. */
  readonly failure: unknown;
  /** Ends the connection, unless it has become a link. */
  end(): void;
}

/** Who has not opened a link after so many milliseconds is dialled anew. */
const OPENING = 5_000;
/**
 * The pause before the second attempt is up to this long, in milliseconds, and doubles with each;
 * but calls wait for a node no longer than 2 s by default.
 */
const FIRST_PAUSE = 100;
const LONGEST_PAUSE = 1_500;

/**
 * Keeps a link to every endpoint, as long as it is listed. A link that is open stays so without
 * being listed.
 */
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
    const listed = new Map(list.map((endpoint) => [`${endpoint.host}:${endpoint.port}`, endpoint]));
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

  /** Dials again when the link has ended, and when there was none; but not oneself. */
  private keep(name: string, endpoint: Endpoint): Observable<Address> {
    let failures = 0;
    let hasWarned = false;
    const pause = (): Observable<0> =>
      timer(Math.random() * Math.min(LONGEST_PAUSE, FIRST_PAUSE * 2 ** failures));
    return this.reach(endpoint).pipe(
      mergeMap((address) => concat(of(address), this.endOfLink(address))),
      repeat({
        delay: () => {
          failures = 0;
          return pause();
        },
      }),
      tap(() => (hasWarned = false)),
      retry({
        delay: (error: unknown) => {
          if (!hasWarned && !(error instanceof UnwantedError)) {
            hasWarned = true;
            this.logger.warn(
              `There is no link to the node at ${name}; it is dialled again and again. ` +
                messageOf(error),
            );
          }
          failures++;
          return pause();
        },
      }),
      takeWhile((address) => address !== this.own),
    );
  }

  /** Who is there. There is a link with it then, unless the other end did not want it. */
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

/**
 * The other end has a link already, which is not known here yet; or has not noticed that it has
 * none any more.
 */
class UnwantedError extends Error {}
