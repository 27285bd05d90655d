import { STATUS_CODES } from 'node:http';
import {
  type ArgumentsHost,
  Catch,
  HttpException,
  Inject,
  Logger,
  Optional,
  type RpcExceptionFilter,
} from '@nestjs/common';
import { type AbstractHttpAdapter, BaseExceptionFilter } from '@nestjs/core';
import { hasClientLeft, httpExchangeOf } from './http-caller.js';
import { CallCancelledError, isA, ServingError } from '../core/errors.js';
import { SERVING_MODULE_OPTIONS, type ServingModuleOptions } from './serving.module-definition.js';
import { type Observable, throwError } from 'rxjs';

/** Milliseconds between lines. */
const PAUSE = 1000;

/**
 * Logs refusals, such as overload, which aren't the application's fault: one line a second for each
 * code, without a stack.
 */
export class RefusalLog {
  private readonly logger = new Logger('Serving');
  private readonly last = new Map<string, { at: number; unlogged: number }>();

  static takes(error: ServingError): boolean {
    return error.statusCode !== 500;
  }

  add({ code, message }: ServingError): void {
    const now = performance.now();
    const last = this.last.get(code);
    if (last && now - last.at < PAUSE) {
      last.unlogged++;
      return;
    }
    const others = last?.unlogged ? `, after ${last.unlogged} others without a line` : '';
    this.logger.warn(`${message} (${code}${others})`);
    this.last.set(code, { at: now, unlogged: 0 });
  }
}

/**
 * Answers a ServingError over HTTP as Nest's own filter does, with the header `Retry-After` if it
 * has a `retryAfter`. Logs each kind of refusal at most once a second, and nothing for a client
 * that has left.
 *
 * The application's filters answer first. A filter that extends this one keeps the header, also for
 * an HttpException whose `cause` is the error.
 */
@Catch(ServingError)
export class ServingExceptionFilter extends BaseExceptionFilter<Error> {
  @Optional()
  @Inject(SERVING_MODULE_OPTIONS)
  private readonly moduleOptions?: ServingModuleOptions;
  private readonly refusals = new RefusalLog();

  /** Answers the error, or an HttpException whose `cause` it is. */
  override catch(exception: Error, host: ArgumentsHost): void {
    const exchange = httpExchangeOf(host);
    if (!exchange) {
      // Nest answers other transports if a filter returns nothing.
      return;
    }
    const error = exception instanceof HttpException ? exception.cause : exception;
    this.setRetryAfter(host.switchToHttp().getResponse(), error);
    const isUnread = isA(error, CallCancelledError) && hasClientLeft(exchange);
    const isRefusal = isA(exception, ServingError) && RefusalLog.takes(exception);
    if (isRefusal && !isUnread && this.moduleOptions?.logRefusals !== false) {
      this.refusals.add(exception);
    }
    // oxlint-disable-next-line promise/valid-params -- It is the method of a filter.
    super.catch(isRefusal ? quietly(exception) : exception, host);
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

/** Nest's filter logs stacks of all but its own exceptions. */
function quietly(error: ServingError): HttpException {
  const { statusCode, expose } = error;
  const message = expose ? error.message : (STATUS_CODES[statusCode] ?? STATUS_CODES[500]!);
  return new HttpException({ statusCode, message }, statusCode, { cause: error });
}

/**
 * Answers a failed RPC call with the ServingError's name, code, status and `retryAfter`; Nest
 * answers "Internal server error". Only a caller at fault gets the message, as over HTTP; others
 * are logged, each kind of refusal at most once a second.
 */
@Catch(ServingError)
export class ServingRpcExceptionFilter implements RpcExceptionFilter<ServingError> {
  private readonly logger = new Logger(ServingRpcExceptionFilter.name);
  private readonly refusals = new RefusalLog();

  catch(error: ServingError): Observable<never> {
    if (RefusalLog.takes(error)) {
      this.refusals.add(error);
    } else {
      this.logger.error(error);
    }
    return throwError(() => clientErrorOf(error));
  }
}

/** Shows the message if the client is at fault, otherwise the status's text. */
export function clientErrorOf(error: ServingError): ReturnType<ServingError['toJSON']> {
  return error.expose
    ? error.toJSON()
    : { ...error.toJSON(), message: STATUS_CODES[error.statusCode] ?? STATUS_CODES[500]! };
}
