import { Observable } from 'rxjs';
import type { Incoming } from '../calls/inbound-calls.js';
import { eventsOf, type Offer, outputOf } from '../calls/exported-serving.js';
import type { Offers } from '../calls/exported-servings.js';
import type { PlainHandler } from '../transport.js';
import type { WireLimits } from '../wire/limits.js';
import { readPlainCall } from './json-call.js';
import { writePlain } from './json-writer.js';

export interface PlainDoor {
  /** Where calls are counted, or refused. */
  readonly incoming: Incoming;
  readonly limits: WireLimits;
}

/** The door of each serving for those who send plain JSON: Nest's own clients, and those of other languages. */
export function plainHandlersOf(offers: Offers, { incoming, limits }: PlainDoor): ReadonlyMap<string, PlainHandler> {
  const handlerOf =
    (name: string): PlainHandler =>
    (message) =>
      new Observable((subscriber) => {
        const left = new AbortController();
        const call = async (offer: Offer): Promise<void> => {
          for await (const answer of answersOf(offer, message, limits, left.signal)) {
            subscriber.next(answer);
          }
        };
        incoming.take(name, call).then(
          () => subscriber.complete(),
          (error: unknown) => subscriber.error(error),
        );
        // Whoever unsubscribes waits no more.
        return () => left.abort();
      });
  return new Map(offers.names().map((name) => [name, handlerOf(name)]));
}

async function* answersOf(
  offer: Offer,
  message: unknown,
  limits: WireLimits,
  signal: AbortSignal,
): AsyncGenerator<unknown, void> {
  const { method, input, options, form } = readPlainCall(message, limits);
  const inside = { ...options, signal, origin: 'rpc' };
  if (method === 'stream') {
    for await (const event of eventsOf(offer, input, inside)) {
      yield writePlain(event, form, limits);
    }
  } else {
    yield writePlain(await outputOf(offer, method, input, inside), form, limits);
  }
}
