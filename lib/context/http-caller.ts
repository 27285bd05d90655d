import type { ExecutionContext } from '@nestjs/common';
import type { IncomingMessage, ServerResponse } from 'node:http';
import type { EventEmitter } from 'node:stream';
import { CallCancelledError } from '../errors.js';
import { onAbort, type OwnSignal } from './call-options.js';
import { RequestCaller } from './caller-context.js';

/** A request or response of Node, or the wrapper of Fastify around it. */
type Wrapped<T> = T & { readonly raw?: T };

/**
 * The client of an HTTP request. It is a signal itself, which aborts when the client leaves before
 * it was answered, and costs less than an AbortSignal. `signal` is that for code that needs one.
 */
export class HttpCaller extends RequestCaller implements OwnSignal {
  // Private to the object, so that pipes which read the properties of a parameter find none.
  #controller: AbortController | undefined;
  #reason: Error | undefined;
  #callbacks: Set<() => void> | undefined;
  readonly #connection: Connection;
  readonly #response: ServerResponse;

  constructor(context: ExecutionContext) {
    super('http');
    const http = context.switchToHttp();
    this.#response = unwrapped(http.getResponse<Wrapped<ServerResponse>>());
    this.#connection = connectionOf(unwrapped(http.getRequest<Wrapped<IncomingMessage>>()));
  }

  override get signal(): AbortSignal {
    this.#controller ??= this.#newController();
    return this.#controller.signal;
  }

  /** Whether the connection has closed, and the request was not answered before. */
  get aborted(): boolean {
    // A client that was answered may leave without an effect on later work.
    return this.#reason !== undefined || (this.#connection.destroyed && !this.isAnswered);
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
    // A function of its own: the same callback may be added twice.
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

  /** Called when the connection closes, before other listeners may end the response. */
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
    if (!this.#response.writableFinished) {
      callersOn(this.#connection).add(this);
    }
    return new Set();
  }
}

/** The callers on each connection that may not be answered yet. */
const callers = new WeakMap<Connection, Set<HttpCaller>>();

/**
 * A connection gets one listener, when it is first watched: one for each request would cost more.
 * The oldest callers are forgotten here once they were answered.
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
  // Before all other listeners: some, such as that of Nest for `@Sse()`, end the response when a
  // client leaves.
  connection.prependListener('close', () => waiting.forEach((caller) => caller.leave()));
  return waiting;
}

/** Whether the client of the request has closed its connection. */
export function hasClientLeft(request: unknown): boolean {
  return connectionOf(unwrapped(request as Wrapped<IncomingMessage>)).destroyed;
}

function unwrapped<T>(given: Wrapped<T>): T {
  return given.raw ?? given;
}

/**
 * The object that emits `close` when the client leaves. For HTTP/1 the socket, since requests that
 * are pipelined behind others get no event; for HTTP/2 the stream, since requests share a socket.
 */
function connectionOf(request: IncomingMessage & { readonly stream?: Connection }): Connection {
  return request.stream ?? request.socket;
}

type Connection = EventEmitter & { readonly destroyed: boolean };
