import { STATUS_CODES } from 'node:http';
import { Catch, Logger, type RpcExceptionFilter } from '@nestjs/common';
import { type Observable, throwError } from 'rxjs';
import { ServingError } from './errors.js';

/**
 * Answers an RPC call that failed with a ServingError with its name, code, status and `retryAfter`,
 * where Nest says "Internal server error"; with its message only where the caller is at fault, as
 * over HTTP. Other messages are logged instead.
 */
@Catch(ServingError)
export class ServingRpcExceptionFilter implements RpcExceptionFilter<ServingError> {
  private readonly logger = new Logger(ServingRpcExceptionFilter.name);

  catch(error: ServingError): Observable<never> {
    if (error.expose) {
      return throwError(() => error.toJSON());
    }
    this.logger.error(error);
    return throwError(() => ({ ...error.toJSON(), message: STATUS_CODES[error.statusCode] }));
  }
}
