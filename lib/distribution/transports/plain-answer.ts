import { Logger } from '@nestjs/common';
import { catchError, defer, type Observable, throwError } from 'rxjs';
import { isServingError } from '../../errors.js';
import { plainErrorOf } from '../plain/plain-error.js';
import type { PlainHandler } from '../transport.js';

const logger = new Logger('ServingTransport');

/**
 * A handler as Nest's servers call it. They answer the error of an Observable alone, and write it as JSON, of which an Error is `{}`: so it becomes a
 * plain object, with the message of the error where the caller is at fault.
 */
export function plainAnswer(handler: PlainHandler): (data: unknown) => Promise<Observable<unknown>> {
  return async (data) => defer(() => handler(data)).pipe(catchError((error: unknown) => throwError(() => plainError(error))));
}

function plainError(error: unknown): object {
  if (!(isServingError(error) && error.expose)) {
    logger.error(error);
  }
  return plainErrorOf(error);
}
