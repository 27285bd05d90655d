import { STATUS_CODES } from 'node:http';
import { Logger } from '@nestjs/common';
import { catchError, defer, type Observable, throwError } from 'rxjs';
import { isServingError } from '../../errors.js';
import type { JsonHandler } from '../transport.js';

/**
 * The form of an error for clients: with its message if the client is at fault, else with the text
 * of its status.
 */
export function jsonErrorOf(error: unknown): JsonError {
  if (!isServingError(error)) {
    return { name: 'Error', code: 'INTERNAL', statusCode: 500, message: STATUS_CODES[500]! };
  }
  return error.expose
    ? error.toJSON()
    : { ...error.toJSON(), message: STATUS_CODES[error.statusCode] ?? STATUS_CODES[500]! };
}

export interface JsonError {
  readonly name: string;
  readonly code: string;
  readonly statusCode: number;
  readonly message: string;
  readonly retryAfter?: number;
}

const logger = new Logger('ServingTransport');

/**
 * A handler for Nest's servers. They send only the error of an Observable, and send it as JSON, in
 * which an Error is `{}`. So errors become plain objects.
 */
export function jsonAnswer(handler: JsonHandler): (data: unknown) => Promise<Observable<unknown>> {
  return async (data) =>
    defer(() => handler(data)).pipe(
      catchError((error: unknown) => throwError(() => jsonError(error))),
    );
}

function jsonError(error: unknown): object {
  if (!(isServingError(error) && error.expose)) {
    logger.error(error);
  }
  return jsonErrorOf(error);
}
