import type { ExecutionContext } from '@nestjs/common';
import type { IncomingMessage, ServerResponse } from 'node:http';
import type { EventEmitter } from 'node:stream';
import { CallCancelledError } from '../core/errors.js';
import { onAbort, type OwnSignal, RequestCaller } from '../core/context/call-context.js';

type Wrapped<T> = T & { readonly raw?: T };

/**
 * An HTTP request's client: a signal that aborts when the client leaves before the answer, cheaper
 * than an AbortSignal; `signal` is for code that needs one.
 */
export class HttpCaller extends RequestCaller implements OwnSignal {
  // Private fields are invisible to pipes that read a parameter's properties.
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

  get aborted(): boolean {
    // A client that leaves after its answer does not affect later work.
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

const callers = new WeakMap<Connection, Set<HttpCaller>>();

/**
 * A connection gets one listener when it is first watched; one per request would cost more. The
 * oldest callers are removed when they have been answered.
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
  // Before others: some, such as Nest's for `@Sse()`, end the response when a client leaves.
  connection.prependListener('close', () => waiting.forEach((caller) => caller.leave()));
  return waiting;
}

export function hasClientLeft(request: unknown): boolean {
  return connectionOf(unwrapped(request as Wrapped<IncomingMessage>)).destroyed;
}

function unwrapped<T>(given: Wrapped<T>): T {
  return given.raw ?? given;
}

/**
 * Emits `close` when the client leaves. For HTTP/1 it is the socket, since pipelined requests get
 * no event; for HTTP/2 the stream, since requests share a socket.
 */
function connectionOf(request: IncomingMessage & { readonly stream?: Connection }): Connection {
  return request.stream ?? request.socket;
}

type Connection = EventEmitter & { readonly destroyed: boolean };
