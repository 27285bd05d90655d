import {
  DeadlineUnreachableError,
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
import { clip } from '../../format.js';
import type { Header } from '../wire/record-reader.js';
import { type Address, NodeGoneError } from '../transport.js';
import { FrameError } from '../wire/prelude.js';
import { isSaidError, saidError } from '../wire/wire-error.js';

/** Whether rows of a call that failed may have run: what decides where it may be made again. */
export type Executed = 'no' | 'unknown' | 'yes';

/** So much of each message crosses, in characters: an error and its causes are to fit into the header of a frame. */
const LONGEST_MESSAGE = 1000;

/** Why one node did not answer a call. */
export class Fault extends Error {
  override readonly name = 'Fault';

  constructor(
    /** What the caller is told, if no other node does better. */
    readonly error: Error,
    readonly executed: Executed,
    /** The node is not there any more, or was not when the call came. */
    readonly isGone = false,
  ) {
    super(error.message, { cause: error });
  }
}

/** What became of a call whose node is gone. */
export function lostFault(serving: string, address: Address, executed: 'no' | 'unknown'): Fault {
  const what = executed === 'no' ? 'did not get the call' : 'was lost with the call; its rows may have run';
  return new Fault(new NodeLostError(`Node ${address} ${what} to serving "${serving}"`), executed, true);
}

/** What became of a call that could not be sent. */
export function unsentFault(serving: string, address: Address, cause: unknown): Fault {
  if (cause instanceof NodeGoneError) {
    return lostFault(serving, address, 'no');
  }
  if (cause instanceof RequestTooLargeError) {
    // So it would be for any other node.
    return new Fault(cause, 'yes');
  }
  const message = `The call to serving "${serving}" could not be sent to node ${address}: ${messageOf(cause)}`;
  return new Fault(new NodeLostError(message, { cause }), 'no', true);
}

/** What became of a call whose answer makes no sense. */
export function nonsenseFault(address: Address, cause: FrameError): Fault {
  return new Fault(
    new NodeLostError(`Node ${address} gave an answer that cannot be read: ${cause.message}`, { cause }),
    'unknown',
  );
}

/** A fault as it crosses the wire. */
export function faultHeader(error: unknown, executed: Executed = executedBy(error)): object {
  return { error: inShort(saidError(error)), executed };
}

/** What a node says of a call whose caller it takes for lost. */
export function lostCallerHeader(): object {
  const error = new NodeLostError('The node of the call took its caller for lost; its rows may have run');
  return { ...faultHeader(error), gone: true };
}

/** @throws FrameError when there is none */
export function faultIn({ error, executed, gone }: Header): Fault {
  if (!isSaidError(error)) {
    throw new FrameError('The header has no error');
  }
  return new Fault(fromWire(error), executed === 'no' || executed === 'unknown' ? executed : 'yes', gone === true);
}

/** Whether the rows of a call that failed so may have run: one that was refused at the door has not, one that lost its partition may have. */
function executedBy(error: unknown): Executed {
  if (!isServingError(error)) {
    return 'yes';
  }
  if (error instanceof OverloadedError || error instanceof DeadlineUnreachableError || error instanceof UnknownServingError) {
    return 'no';
  }
  return error instanceof PartitionLostError ||
    error instanceof ServingUnavailableError ||
    error instanceof ServingClosedError ||
    error instanceof NodeLostError
    ? 'unknown'
    : 'yes';
}

function inShort({ name, message, cause, ...error }: WireError): WireError {
  return { name: clip(name), message: clip(message, LONGEST_MESSAGE), ...error, ...(cause && { cause: inShort(cause) }) };
}
