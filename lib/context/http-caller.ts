import type { ExecutionContext } from '@nestjs/common';
import type { IncomingMessage, ServerResponse } from 'node:http';
import type { EventEmitter } from 'node:stream';
import { CallCancelledError } from '../errors.js';
import { type OwnSignal, onAbort, sharedListener } from './call-options.js';
import { RequestCaller } from './caller-context.js';

/** A request or response of Node, or the wrapper of Fastify around it. */
type Wrapped<T> = T & { readonly raw?: T };

/**
 * The client of an HTTP request. It is a signal itself, which aborts when the client leaves before
 * it was answered, and costs a listener only while a call waits. `signal` is the same as an
 * AbortSignal, for code that needs one.
 */
export class HttpCaller extends RequestCaller implements OwnSignal {
  // Private to the object, so that pipes which read the properties of a parameter find none.
  #controller: AbortController | undefined;
  #reason: Error | undefined;
  readonly #connection: Connection;
  readonly #response: ServerResponse;

  constructor(context: ExecutionContext) {
    super('http');
    const http = context.switchToHttp();
    this.#response = unwrapped(http.getResponse<Wrapped<ServerResponse>>());
    this.#connection = connectionOf(unwrapped(http.getRequest<Wrapped<IncomingMessage>>()));
  }

  override get signal(): AbortSignal {
    this.#controller ??= this.#watch();
    return this.#controller.signal;
  }

  /** Whether the connection has closed, and the request was not answered before. */
  get aborted(): boolean {
    // A client that was answered may leave without an effect on later work.
    return (
      this.#reason !== undefined || (this.#connection.destroyed && !this.#response.writableEnded)
    );
  }

  get reason(): Error | undefined {
    return this.aborted
      ? (this.#reason ??= new CallCancelledError(
          'The client has closed its connection before it was answered',
        ))
      : undefined;
  }

  throwIfAborted(): void {
    if (this.aborted) {
      throw this.reason!;
    }
  }

  onAbort(callback: () => void): () => void {
    return onClose(this.#connection, () => {
      // Read now: the response may be ended later, by a listener of Nest.
      if (this.reason) {
        callback();
      }
    });
  }

  addEventListener(...listener: Parameters<OwnSignal['addEventListener']>): void {
    this.signal.addEventListener(...listener);
  }

  removeEventListener(...listener: Parameters<OwnSignal['removeEventListener']>): void {
    this.signal.removeEventListener(...listener);
  }

  #watch(): AbortController {
    const controller = new AbortController();
    if (!this.#response.writableFinished) {
      const stop = onAbort(this, (reason) => controller.abort(reason));
      // A closed connection emits no further event.
      this.#response.once('finish', stop);
    }
    return controller;
  }
}

/** Whether the client of the request has closed its connection. */
export function hasClientLeft(request: unknown): boolean {
  return connectionOf(unwrapped(request as Wrapped<IncomingMessage>)).destroyed;
}

/**
 * Added before all other listeners: some of them, such as that of Nest for `@Sse()`, end the
 * response of a client that has left.
 */
const onClose = sharedListener<EventEmitter>((connection, callback) => {
  connection.prependListener('close', callback);
  return () => connection.removeListener('close', callback);
});

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
