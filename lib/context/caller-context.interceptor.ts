import {
  type CallHandler,
  type ExecutionContext,
  HttpException,
  Injectable,
  type NestInterceptor,
} from '@nestjs/common';
import { type ApplicationConfig, HttpAdapterHost } from '@nestjs/core';
import { catchError, type Observable, throwError } from 'rxjs';
import { isA, ServingError } from '../errors.js';
import { inContext } from './caller-context.js';
import { HttpCaller } from './http-caller.js';

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
