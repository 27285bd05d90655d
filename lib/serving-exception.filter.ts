import { type ArgumentsHost, Catch, HttpException } from '@nestjs/common';
import { type AbstractHttpAdapter, BaseExceptionFilter } from '@nestjs/core';
import { hasClientLeft } from './context/http-caller.js';
import { CallCancelledError, isA, ServingError } from './errors.js';

/**
 * Answers a ServingError over HTTP as Nest's own filter does, and with the header `Retry-After` if
 * it has a `retryAfter`. Logs nothing for a client that has left.
 *
 * ServingModule registers it behind the filters of the application, which answer first. A filter
 * that extends this one keeps the header, also for an HttpException whose `cause` is the error.
 */
@Catch(ServingError)
export class ServingExceptionFilter extends BaseExceptionFilter<Error> {
  /** Answers the error, or an HttpException whose `cause` it is. */
  override catch(exception: Error, host: ArgumentsHost): void {
    if (host.getType() !== 'http') {
      // Nest answers other transports itself where a filter returns nothing.
      return;
    }
    const error = exception instanceof HttpException ? exception.cause : exception;
    const http = host.switchToHttp();
    this.setRetryAfter(http.getResponse(), error);
    const isUnread = isA(error, CallCancelledError) && hasClientLeft(http.getRequest());
    // Nest logs every error that is not one of its own exceptions.
    const answer = isUnread
      ? new HttpException(error.message, error.statusCode, { cause: error })
      : exception;
    // oxlint-disable-next-line promise/valid-params -- It is the method of a filter.
    super.catch(answer, host);
  }

  private setRetryAfter(response: unknown, error: unknown): void {
    const adapter =
      (this.applicationRef as AbstractHttpAdapter | undefined) ?? this.httpAdapterHost?.httpAdapter;
    const retryAfter = isA(error, ServingError) ? error.retryAfter : undefined;
    if (adapter && retryAfter !== undefined && !adapter.isHeadersSent(response)) {
      adapter.setHeader(response, 'Retry-After', String(retryAfter));
    }
  }
}
