import type { ArgumentsHost } from '@nestjs/common';
import type { IncomingMessage, ServerResponse } from 'node:http';
import type { EventEmitter } from 'node:stream';
import { CallCancelledError } from '../core/errors.js';
import { onAbort, type OwnSignal, RequestCaller } from '../core/context/call-context.js';

/**
 * Aborts when the HTTP client leaves before the answer. Cheaper than an AbortSignal; `signal` is
 * for code that needs one.
 */
export class HttpCaller extends RequestCaller implements OwnSignal {
  // Pipes read a parameter's properties, but not private fields.
  #controller: AbortController | undefined;
  #reason: Error | undefined;
  #callbacks: Set<() => void> | undefined;
  readonly #connection: Connection | undefined;
  readonly #response: ServerResponse;

  constructor({ request, response }: HttpExchange) {
    super('http');
    this.#response = response;
    this.#connection = connectionOf(request);
  }

  override get signal(): AbortSignal {
    this.#controller ??= this.#newController();
    return this.#controller.signal;
  }

  get aborted(): boolean {
    // A client that leaves after its answer does not affect later work.
    return this.#reason !== undefined || (this.#connection?.destroyed === true && !this.isAnswered);
  }

  get reason(): Error | undefined {
    return this.aborted
      ? (this.#reason ??= new CallCancelledError(
          'The client has closed its connection before it was answered',
        ))
      : undefined;
  }

  get isAnswered(): boolean {
    return this.#response.writableEnded;
  }

  throwIfAborted(): void {
    if (this.aborted) {
      throw this.reason!;
    }
  }

  onAbort(callback: () => void): () => void {
    // The same callback may be added twice.
    const wake = (): void => callback();
    this.#callbacks ??= this.#watch();
    this.#callbacks.add(wake);
    return () => void this.#callbacks!.delete(wake);
  }

  addEventListener(...listener: Parameters<OwnSignal['addEventListener']>): void {
    this.signal.addEventListener(...listener);
  }

  removeEventListener(...listener: Parameters<OwnSignal['removeEventListener']>): void {
    this.signal.removeEventListener(...listener);
  }

  /** Called before other listeners may end the response. */
  leave(): void {
    if (this.reason) {
      this.#callbacks?.forEach((wake) => wake());
    }
  }

  #newController(): AbortController {
    const controller = new AbortController();
    onAbort(this, (reason) => controller.abort(reason));
    return controller;
  }

  #watch(): Set<() => void> {
    if (this.#connection && !this.#response.writableFinished) {
      callersOn(this.#connection).add(this);
    }
    return new Set();
  }
}

const callers = new WeakMap<Connection, Set<HttpCaller>>();

/**
 * A connection gets one listener: one per request would cost more. The oldest callers are removed
 * once answered.
 */
function callersOn(connection: Connection): Set<HttpCaller> {
  const known = callers.get(connection);
  if (known) {
    for (const caller of known) {
      if (!caller.isAnswered) {
        break;
      }
      known.delete(caller);
    }
    return known;
  }
  const waiting = new Set<HttpCaller>();
  callers.set(connection, waiting);
  // Later listeners, such as Nest's for `@Sse()`, end the response when a client leaves.
  connection.prependListener('close', () => waiting.forEach((caller) => caller.leave()));
  return waiting;
}

export function hasClientLeft({ request }: HttpExchange): boolean {
  return connectionOf(request)?.destroyed === true;
}

export interface HttpExchange {
  readonly request: IncomingMessage & { readonly stream?: unknown };
  readonly response: ServerResponse;
}

/**
 * Undefined for other contexts, even if their type is `http`: libraries that use Nest's
 * ExternalContextCreator often leave it so.
 */
export function httpExchangeOf(host: ArgumentsHost): HttpExchange | undefined {
  if (host.getType() !== 'http') {
    return undefined;
  }
  const [request, response] = host.getArgs<unknown[]>().map(unwrapped);
  return isObject(request) &&
    'headers' in request &&
    isObject(response) &&
    'writableEnded' in response
    ? ({ request, response } as unknown as HttpExchange)
    : undefined;
}

function unwrapped(given: unknown): unknown {
  return isObject(given) && isObject(given['raw']) ? given['raw'] : given;
}

function isObject(value: unknown): value is Record<string, unknown> {
  return typeof value === 'object' && value !== null;
}

/**
 * Emits `close` when the client leaves: for HTTP/1 the socket, since pipelined requests get no
 * event; for HTTP/2 the stream, since requests share a socket. Undefined for requests made from
 * events, as on AWS Lambda and Azure Functions.
 */
function connectionOf({ stream, socket }: HttpExchange['request']): Connection | undefined {
  const connection: unknown = stream ?? socket;
  return isObject(connection) && typeof connection['prependListener'] === 'function'
    ? (connection as unknown as Connection)
    : undefined;
}

type Connection = EventEmitter & { readonly destroyed: boolean };
