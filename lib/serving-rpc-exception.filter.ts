import { STATUS_CODES } from 'node:http';
import { Catch, Logger, type RpcExceptionFilter } from '@nestjs/common';
import { type Observable, throwError } from 'rxjs';
import { ServingError } from './errors.js';
import { RefusalLog } from './serving-exception.filter.js';

/**
 * Answers a failed RPC call with the name, code, status and `retryAfter` of its ServingError, where
 * Nest answers "Internal server error". The message is included only if the caller is at fault, as
 * over HTTP; other messages are logged, those of refusals at most once a second for each kind.
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

/**
 * The error as clients may read it: with its message if the client is at fault, else with the text
 * of its status.
 */
export function clientErrorOf(error: ServingError): ReturnType<ServingError['toJSON']> {
  return error.expose
    ? error.toJSON()
    : { ...error.toJSON(), message: STATUS_CODES[error.statusCode] ?? STATUS_CODES[500]! };
}
