import {
  type CallHandler,
  type ExecutionContext,
  HttpException,
  Injectable,
  type NestInterceptor,
} from '@nestjs/common';
import { type ApplicationConfig, HttpAdapterHost } from '@nestjs/core';
import { catchError, type Observable, throwError } from 'rxjs';
import type { IncomingMessage, ServerResponse } from 'node:http';
import type { EventEmitter } from 'node:stream';
import { isA, ServingError, CallCancelledError } from '../errors.js';
import { inContext, type CallerContext } from './caller-context.js';
import { sharedListener } from './call-options.js';

/**
 * Gives the calls of servings and `@Batched()` methods the context of their request, and clients
 * the `Retry-After` header.
 */
@Injectable()
export class CallerContextInterceptor implements NestInterceptor {
  constructor(private readonly host: HttpAdapterHost) {}

  intercept(context: ExecutionContext, next: CallHandler): Observable<unknown> {
    const origin = context.getType();
    // Nest runs the handler in the async context of `intercept`, wherever the Observable is
    // subscribed.
    if (origin !== 'http') {
      return inContext({ origin, signal: undefined }, () => next.handle());
    }
    const caller = new HttpCaller(context);
    const answer = inContext(caller, () => next.handle());
    return answer.pipe(
      catchError((error) => throwError(() => this.asAnswer(error, caller, context))),
    );
  }

  private asAnswer(error: unknown, caller: HttpCaller, context: ExecutionContext): unknown {
    if (!isA(error, ServingError)) {
      return error;
    }
    if (caller.hasLeftWith(error)) {
      // No client reads the answer. But Nest logs an error that is not one of its own exceptions as
      // a fault of the application.
      return new HttpException(error.message, error.statusCode, { cause: error });
    }
    const { httpAdapter } = this.host;
    const response = context.switchToHttp().getResponse<unknown>();
    if (error.retryAfter !== undefined && !httpAdapter.isHeadersSent(response)) {
      httpAdapter.setHeader(response, 'Retry-After', String(error.retryAfter));
    }
    return error;
  }
}

/**
 * Registers the context of every request of the application. Call it before Nest binds handlers to
 * interceptors.
 */
export function registerCallerContext(application: ApplicationConfig, host: HttpAdapterHost): void {
  if (
    !application
      .getGlobalInterceptors()
      .some((interceptor) => interceptor instanceof CallerContextInterceptor)
  ) {
    application.addGlobalInterceptor(new CallerContextInterceptor(host));
  }
}

/** A request or response of Node, or the wrapper of Fastify around it. */
type Wrapped<T> = T & { readonly raw?: T };

/** The client of an HTTP request. */
export class HttpCaller implements CallerContext {
  readonly origin = 'http';
  private controller: AbortController | undefined;

  constructor(private readonly context: ExecutionContext) {}

  get signal(): AbortSignal {
    this.controller ??= this.watchConnection();
    return this.controller.signal;
  }

  /** Whether the error is the reason of this client's signal. */
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
      // A client that was answered may leave without an effect on later work.
      if (!response.writableEnded) {
        controller.abort(
          new CallCancelledError('The client has closed its connection before it was answered'),
        );
      }
    };
    if (connection.destroyed) {
      leave();
    } else if (!response.writableFinished) {
      // Stops when the response ends: a closed connection emits no further event.
      response.once('finish', onClose(connection, leave));
    }
    return controller;
  }
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
