import { Observable } from 'rxjs';
import type { InboundCalls } from '../calls/inbound-calls.js';
import { eventsOf, type ExportedServing, outputOf } from '../calls/exported-serving.js';
import type { ExportedServings } from '../calls/exported-servings.js';
import type { JsonHandler } from '../transport.js';
import type { WireLimits } from '../wire/limits.js';
import { readJsonCall } from './json-call.js';
import { writeJson } from './json-writer.js';

export interface JsonHandlersOptions {
  /** Where calls are counted, or refused. */
  readonly incoming: InboundCalls;
  readonly limits: WireLimits;
}

/**
 * The door of each serving for those who send plain JSON: Nest's own clients, and those of other
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
        // Whoever unsubscribes waits no more.
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
