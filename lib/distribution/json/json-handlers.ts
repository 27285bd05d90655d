import { Observable } from 'rxjs';
import type { InboundCalls } from '../calls/inbound-calls.js';
import { eventsOf, type ExportedServing, outputOf } from '../calls/exported-serving.js';
import type { ExportedServings } from '../calls/exported-servings.js';
import type { JsonHandler } from '../transport.js';
import type { WireLimits } from '../wire/limits.js';
import { readJsonCall } from './json-call.js';
import { writeJson } from './json-writer.js';

export interface JsonHandlersOptions {
  /** Counts calls, or refuses them. */
  readonly incoming: InboundCalls;
  readonly limits: WireLimits;
}

/**
 * The handlers of all servings for clients that send plain JSON: Nest's own, and those in other
 * languages.
 */
export function jsonHandlersOf(
  offers: ExportedServings,
  { incoming, limits }: JsonHandlersOptions,
): ReadonlyMap<string, JsonHandler> {
  const handlerOf =
    (name: string): JsonHandler =>
    (message) =>
      new Observable((subscriber) => {
        const left = new AbortController();
        const call = async (offer: ExportedServing): Promise<void> => {
          for await (const answer of answersOf(offer, message, limits, left.signal)) {
            subscriber.next(answer);
          }
        };
        incoming.take(name, call).then(
          () => subscriber.complete(),
          (error: unknown) => subscriber.error(error),
        );
        // A client that unsubscribes cancels its call.
        return () => left.abort();
      });
  return new Map(offers.names().map((name) => [name, handlerOf(name)]));
}

async function* answersOf(
  offer: ExportedServing,
  message: unknown,
  limits: WireLimits,
  signal: AbortSignal,
): AsyncGenerator<unknown, void> {
  const { method, input, options, form } = readJsonCall(message, limits);
  const inside = { ...options, signal, origin: 'rpc' };
  if (method === 'stream') {
    for await (const event of eventsOf(offer, input, inside)) {
      yield writeJson(event, form, limits);
    }
  } else {
    yield writeJson(await outputOf(offer, method, input, inside), form, limits);
  }
}
