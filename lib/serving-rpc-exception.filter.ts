import { Catch, type RpcExceptionFilter } from '@nestjs/common';
import { type Observable, throwError } from 'rxjs';
import { ServingError } from './errors.js';

/** Answers an RPC call that failed with a ServingError with its name, code and message, where Nest says "Internal server error". */
@Catch(ServingError)
export class ServingRpcExceptionFilter implements RpcExceptionFilter<ServingError> {
  catch(error: ServingError): Observable<never> {
    return throwError(() => error.toJSON());
  }
}
