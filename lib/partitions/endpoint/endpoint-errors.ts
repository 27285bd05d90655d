import { InvalidOutputError, PartitionLostError, type ServingError } from '../../errors.js';
import { NotStartedError, TooLargeToSendError } from '../partition.js';

/** A call of an endpoint that failed. */
export class EndpointFailure extends Error {
  override readonly name = 'EndpointFailure';

  constructor(
    readonly url: string,
    /** The status code of gRPC. */
    readonly code: number,
    readonly details: string,
    /** False only if it is certain that nothing of the call was sent. */
    readonly isSent: boolean,
  ) {
    super(`The endpoint ${url} failed with ${nameOf(code)}: ${details}`);
  }
}

/** A server that answers, and states that its model is not ready. */
export class ModelNotReadyError extends Error {
  override readonly name = 'ModelNotReadyError';

  constructor() {
    super('the server states that it is not ready');
  }
}

/** The status codes of gRPC, by number. */
const CODES = [
  'OK',
  'CANCELLED',
  'UNKNOWN',
  'INVALID_ARGUMENT',
  'DEADLINE_EXCEEDED',
  'NOT_FOUND',
  'ALREADY_EXISTS',
  'PERMISSION_DENIED',
  'RESOURCE_EXHAUSTED',
  'FAILED_PRECONDITION',
  'ABORTED',
  'OUT_OF_RANGE',
  'UNIMPLEMENTED',
  'INTERNAL',
  'UNAVAILABLE',
  'DATA_LOSS',
  'UNAUTHENTICATED',
];

/**
 * The codes that are about the server and not about the rows. A server that is shut down by force
 * answers CANCELLED.
 */
const OF_THE_SERVER: ReadonlySet<string> = new Set([
  'CANCELLED',
  'DEADLINE_EXCEEDED',
  'NOT_FOUND',
  'PERMISSION_DENIED',
  'RESOURCE_EXHAUSTED',
  'ABORTED',
  'UNAVAILABLE',
  'UNAUTHENTICATED',
]);

/**
 * The error of a batch whose call failed. A failure that is neither of these is the model's: it
 * fails the batch, in which the rows that cause it may be searched.
 */
export function batchErrorOf(failure: EndpointFailure): ServingError | EndpointFailure {
  const { message, details, isSent } = failure;
  const code = nameOf(failure.code);
  if (!isSent) {
    return new NotStartedError(message, { cause: failure });
  }
  if (code === 'RESOURCE_EXHAUSTED' && /larger than/i.test(details)) {
    return new TooLargeToSendError(message, { cause: failure });
  }
  if (code === 'INTERNAL' && details.startsWith('Response message parsing error')) {
    return new InvalidOutputError(message, { cause: failure });
  }
  return OF_THE_SERVER.has(code) ? new PartitionLostError(message, { cause: failure }) : failure;
}

/** Whether the endpoint does not implement the call. */
export function isUnimplemented(error: unknown): boolean {
  return error instanceof EndpointFailure && nameOf(error.code) === 'UNIMPLEMENTED';
}

/** Whether the server cannot be reached, or not yet be used: later it may. */
export function isDown(error: unknown): boolean {
  return (
    error instanceof ModelNotReadyError ||
    (error instanceof EndpointFailure &&
      ['UNAVAILABLE', 'DEADLINE_EXCEEDED'].includes(nameOf(error.code)))
  );
}

function nameOf(code: number): string {
  return CODES[code] ?? `status ${code}`;
}
