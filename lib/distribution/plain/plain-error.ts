import { STATUS_CODES } from 'node:http';
import { isServingError } from '../../errors.js';

/** An error as strangers may read it: with its message where the caller is at fault, else with that of its status. */
export function plainErrorOf(error: unknown): PlainError {
  if (!isServingError(error)) {
    return { name: 'Error', code: 'INTERNAL', statusCode: 500, message: STATUS_CODES[500]! };
  }
  return error.expose ? error.toJSON() : { ...error.toJSON(), message: STATUS_CODES[error.statusCode] ?? STATUS_CODES[500]! };
}

export interface PlainError {
  readonly name: string;
  readonly code: string;
  readonly statusCode: number;
  readonly message: string;
  readonly retryAfter?: number;
}
