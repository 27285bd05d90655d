import {
  DeadlineTooShortError,
  fromWire,
  isServingError,
  messageOf,
  NodeLostError,
  OverloadedError,
  PartitionLostError,
  RequestTooLargeError,
  ServingClosedError,
  ServingUnavailableError,
  UnknownServingError,
  type WireError,
} from '../../errors.js';
import { truncate } from '../../format.js';
import type { Header } from '../wire/record-reader.js';
import { type Address, NodeGoneError } from '../transport.js';
import { FrameError } from '../wire/prelude.js';
import { isWireError, wireError } from '../wire/wire-error.js';

/** Whether rows of a call that failed may have run: what decides where it may be made again. */
export type MayHaveRun = 'no' | 'unknown' | 'yes';

/**
 * So much of each message crosses, in characters: an error and its causes are to fit into the
 * header of a frame.
 */
const LONGEST_MESSAGE = 1000;

/** Why one node did not answer a call. */
export class AttemptError extends Error {
  override readonly name = 'Fault';

  constructor(
    /** What the caller is told, if no other node does better. */
    readonly error: Error,
    readonly mayHaveRun: MayHaveRun,
    /** The node is not there any more, or was not when the call came. */
    readonly isUnreachable = false,
  ) {
    super(error.message, { cause: error });
  }
}

/** What became of a call whose node is gone. */
export function nodeLostError(
  serving: string,
  address: Address,
  mayHaveRun: 'no' | 'unknown',
): AttemptError {
  const what =
    mayHaveRun === 'no' ? 'did not get the call' : 'was lost with the call; its rows may have run';
  return new AttemptError(
    new NodeLostError(`Node ${address} ${what} to serving "${serving}"`),
    mayHaveRun,
    true,
  );
}

/** What became of a call that could not be sent. */
export function notSentError(serving: string, address: Address, cause: unknown): AttemptError {
  if (cause instanceof NodeGoneError) {
    return nodeLostError(serving, address, 'no');
  }
  if (cause instanceof RequestTooLargeError) {
    // So it would be for any other node.
    return new AttemptError(cause, 'yes');
  }
  const message =
    `The call to serving "${serving}" could not be sent to node ${address}: ` + messageOf(cause);
  return new AttemptError(new NodeLostError(message, { cause }), 'no', true);
}

/** What became of a call whose answer makes no sense. */
export function invalidAnswerError(address: Address, cause: FrameError): AttemptError {
  return new AttemptError(
    new NodeLostError(`Node ${address} gave an answer that cannot be read: ${cause.message}`, {
      cause,
    }),
    'unknown',
  );
}

/** A fault as it crosses the wire. */
export function errorHeader(
  error: unknown,
  mayHaveRun: MayHaveRun = mayHaveRunAfter(error),
): object {
  return { error: truncateError(wireError(error)), mayHaveRun };
}

/** What a node says of a call whose caller it takes for lost. */
export function lostCallerHeader(): object {
  const error = new NodeLostError(
    'The node of the call took its caller for lost; its rows may have run',
  );
  return { ...errorHeader(error), gone: true };
}

/** @throws FrameError when there is none */
export function errorIn({ error, mayHaveRun, gone }: Header): AttemptError {
  if (!isWireError(error)) {
    throw new FrameError('The header has no error');
  }
  return new AttemptError(
    fromWire(error),
    mayHaveRun === 'no' || mayHaveRun === 'unknown' ? mayHaveRun : 'yes',
    gone === true,
  );
}

/**
 * Whether the rows of a call that failed so may have run: one that was refused at the door has not,
 * one that lost its partition may have.
 */
function mayHaveRunAfter(error: unknown): MayHaveRun {
  if (!isServingError(error)) {
    return 'yes';
  }
  if (
    error instanceof OverloadedError ||
    error instanceof DeadlineTooShortError ||
    error instanceof UnknownServingError
  ) {
    return 'no';
  }
  return error instanceof PartitionLostError ||
    error instanceof ServingUnavailableError ||
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
