import type { IncomingMessage, ServerResponse } from 'node:http';
import type { EventEmitter } from 'node:stream';
import type { ExecutionContext } from '@nestjs/common';
import { CallCancelledError } from '../errors.js';
import type { CallerContext } from './caller-context.js';
import { sharedListener } from './shared-listener.js';

/** A request or response of Node, or what Fastify makes of it. */
type Wrapped<T> = T & { readonly raw?: T };

/** The client that waits for the answer to an HTTP request. */
export class HttpCaller implements CallerContext {
  readonly origin = 'http';
  private controller: AbortController | undefined;

  constructor(private readonly context: ExecutionContext) {}

  get signal(): AbortSignal {
    this.controller ??= this.watchConnection();
    return this.controller.signal;
  }

  /** Whether it is this caller's leaving that the error tells of. */
  hasLeftWith(error: Error): boolean {
    return this.controller?.signal.reason === error;
  }

  private watchConnection(): AbortController {
    const controller = new AbortController();
    const response = unwrapped(this.context.switchToHttp().getResponse<Wrapped<ServerResponse>>());
    const connection = connectionOf(
      unwrapped(this.context.switchToHttp().getRequest<Wrapped<IncomingMessage>>()),
    );
    const leave = (): void => {
      // Whoever was answered may leave; what is done after that is done for nobody in particular.
      if (!response.writableEnded) {
        controller.abort(
          new CallCancelledError('The client has closed its connection before it was answered'),
        );
      }
    };
    if (connection.destroyed) {
      leave();
    } else if (!response.writableFinished) {
      // The end of the response ends the listening; of one that has ended no event would come.
      response.once('finish', onClose(connection, leave));
    }
    return controller;
  }
}

/**
 * First of all listeners: some, as that of Nest for `@Sse()`, end the response of a client that has
 * left.
 */
const onClose = sharedListener<EventEmitter>((connection, callback) => {
  connection.prependListener('close', callback);
  return () => connection.removeListener('close', callback);
});

function unwrapped<T>(given: Wrapped<T>): T {
  return given.raw ?? given;
}

/**
 * What closes when the client leaves. Of HTTP/1 that is the socket, since requests that are
 * pipelined behind others hear of nothing; of HTTP/2, whose requests share a socket, the stream.
 */
function connectionOf(request: IncomingMessage & { readonly stream?: Connection }): Connection {
  return request.stream ?? request.socket;
}

type Connection = EventEmitter & { readonly destroyed: boolean };
