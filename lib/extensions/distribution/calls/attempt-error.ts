import {
  DeadlineTooShortError,
  isServingError,
  NodeLostError,
  OverloadedError,
  PartitionLostError,
  RequestTooLargeError,
  ServingClosedError,
  ServingUnavailableError,
  UnknownServingError,
  UnknownVersionError,
} from '../../../index.js';
import { fromWire, hasRun, messageOf, type WireError, truncate } from '../../../doors/text.js';
import type { Header } from '../wire/header.js';
import { type Address, NodeGoneError } from '../transport.js';
import { FrameError } from '../wire/prelude.js';
import { isWireError, wireError } from '../wire/values.js';

/**
 * `no`: another node may run the rows; `unknown`: only if the serving is idempotent; `yes`: no
 * other node may.
 */
export type MayHaveRun = 'no' | 'unknown' | 'yes';

/** Characters: an error with its causes must fit into a header. */
const LONGEST_MESSAGE = 1000;

export class AttemptError extends Error {
  override readonly name = 'AttemptError';

  constructor(
    readonly error: Error,
    readonly mayHaveRun: MayHaveRun,
    readonly isUnreachable = false,
  ) {
    super(error.message, { cause: error });
  }
}

export function nodeLostError(
  serving: string,
  address: Address,
  mayHaveRun: 'no' | 'unknown',
): AttemptError {
  const outcome =
    mayHaveRun === 'no' ? 'before it got the call' : 'during the call; its rows may have run';
  return new AttemptError(
    new NodeLostError(`Serving "${serving}": node ${address} was lost ${outcome}`),
    mayHaveRun,
    true,
  );
}

export function packetsLostError(serving: string, address: Address): AttemptError {
  return new AttemptError(
    new NodeLostError(
      `Serving "${serving}": packets from or to node ${address} were lost during the call; its ` +
        'rows may have run',
    ),
    'unknown',
    true,
  );
}

export function notSentError(serving: string, address: Address, cause: unknown): AttemptError {
  if (cause instanceof NodeGoneError) {
    return nodeLostError(serving, address, 'no');
  }
  if (cause instanceof RequestTooLargeError) {
    // Other nodes would refuse it too.
    return new AttemptError(cause, 'yes');
  }
  const message =
    `The call to serving "${serving}" could not be sent to node ${address}: ` + messageOf(cause);
  return new AttemptError(new NodeLostError(message, { cause }), 'no', true);
}

export function invalidAnswerError(address: Address, cause: FrameError): AttemptError {
  return new AttemptError(
    new NodeLostError(`Node ${address} sent an answer that cannot be read: ${cause.message}`, {
      cause,
    }),
    'unknown',
  );
}

export function errorHeader(
  error: unknown,
  mayHaveRun: MayHaveRun = mayHaveRunAfter(error),
): object {
  return { error: truncateError(wireError(error)), mayHaveRun };
}

export function lostCallerHeader(): object {
  const error = new NodeLostError(
    'The node of the call counted its caller as lost; its rows may have run',
  );
  return { ...errorHeader(error), isUnreachable: true };
}

/** @throws FrameError without an error */
export function errorIn({ error, mayHaveRun, isUnreachable }: Header): AttemptError {
  if (!isWireError(error)) {
    throw new FrameError('The header of an error frame has no error');
  }
  return new AttemptError(
    fromWire(error),
    mayHaveRun === 'no' || mayHaveRun === 'unknown' ? mayHaveRun : 'yes',
    isUnreachable === true,
  );
}

/** Refused rows have not run; a lost partition's may have. */
function mayHaveRunAfter(error: unknown): MayHaveRun {
  if (!isServingError(error)) {
    return 'yes';
  }
  if (
    error instanceof OverloadedError ||
    // Drained by hand, or no partition took the rows.
    error instanceof ServingUnavailableError ||
    error instanceof DeadlineTooShortError ||
    error instanceof UnknownServingError ||
    error instanceof UnknownVersionError
  ) {
    // The refusal may be another serving's, which the rows called.
    return hasRun(error) ? 'unknown' : 'no';
  }
  return error instanceof PartitionLostError ||
    error instanceof ServingClosedError ||
    error instanceof NodeLostError
    ? 'unknown'
    : 'yes';
}

function truncateError({ name, message, cause, ...error }: WireError): WireError {
  return {
    name: truncate(name),
    message: truncate(message, LONGEST_MESSAGE),
    ...error,
    ...(cause && { cause: truncateError(cause) }),
  };
}
