import { InvalidOutputError, PartitionLostError, type ServingError } from '../../../index.js';
import {
  NotStartedError,
  ReplyTooLargeError,
  ServerBusyError,
  TooLargeToSendError,
} from '../../../doors/engine.js';

/**
 * Source of a failed call's status:
 * - `here`: this side, before sending;
 * - `connection`: this side, after sending: the connection broke, or time ran out;
 * - `server`: the server, or a proxy in front of it.
 */
export type StatusPlace = 'here' | 'connection' | 'server';

export class EndpointFailure extends Error {
  override readonly name = 'EndpointFailure';

  constructor(
    readonly url: string,
    readonly code: number,
    readonly details: string,
    readonly place: StatusPlace,
  ) {
    super(`The endpoint ${url} failed with ${nameOf(code)}: ${details}`);
  }
}

export class ModelNotReadyError extends Error {
  override readonly name = 'ModelNotReadyError';

  constructor() {
    super('the server states that it is not ready');
  }
}

/**
 * Meaning of a status:
 * - `unsent`: nothing has run; the server cannot be reached;
 * - `tooLarge`: nothing has run; the server read only the message's length;
 * - `unsendable`: everything has run; the reply is too large to send;
 * - `unreadable`: everything has run; the reply violates the protocol;
 * - `busy`: rows may have run; the server has no room or no time;
 * - `gone`: rows may have run; the connection or the model is lost, so the server must report ready
 *   again;
 * - `failed`: the model failed on the rows.
 */
type Verdict = 'unsent' | 'tooLarge' | 'unsendable' | 'unreadable' | 'busy' | 'gone' | 'failed';

/**
 * gRPC statuses by number, with verdicts for a broken connection and for the server.
 * https://grpc.github.io/grpc/core/md_doc_statuscodes.html
 */
const STATUSES: readonly (readonly [name: string, connection: Verdict, server: Verdict])[] = [
  ['OK', 'gone', 'failed'],
  // A server forced to shut down answers CANCELLED.
  ['CANCELLED', 'gone', 'gone'],
  ['UNKNOWN', 'failed', 'failed'],
  ['INVALID_ARGUMENT', 'failed', 'failed'],
  ['DEADLINE_EXCEEDED', 'gone', 'busy'],
  ['NOT_FOUND', 'gone', 'gone'],
  ['ALREADY_EXISTS', 'failed', 'failed'],
  ['PERMISSION_DENIED', 'gone', 'gone'],
  ['RESOURCE_EXHAUSTED', 'gone', 'busy'],
  ['FAILED_PRECONDITION', 'failed', 'failed'],
  ['ABORTED', 'gone', 'busy'],
  ['OUT_OF_RANGE', 'failed', 'failed'],
  ['UNIMPLEMENTED', 'failed', 'failed'],
  ['INTERNAL', 'failed', 'failed'],
  ['UNAVAILABLE', 'gone', 'busy'],
  ['DATA_LOSS', 'failed', 'failed'],
  ['UNAUTHENTICATED', 'gone', 'gone'],
];

/** Texts that prove more than their code. */
const TEXTS: readonly {
  readonly code: string;
  readonly place?: StatusPlace;
  readonly details: RegExp;
  readonly verdict: Verdict;
}[] = [
  // Texts of gRPC for C++, Python, Go and JavaScript.
  {
    code: 'RESOURCE_EXHAUSTED',
    place: 'server',
    details: /received message larger than/i,
    verdict: 'tooLarge',
  },
  // A reply is too large, so the rows have run.
  { code: 'RESOURCE_EXHAUSTED', details: /message larger than/i, verdict: 'unsendable' },
  // The server did not process a refused stream.
  {
    code: 'UNAVAILABLE',
    place: 'connection',
    details: /^Stream refused by server/,
    verdict: 'unsent',
  },
  { code: 'INTERNAL', details: /^Response message parsing error/, verdict: 'unreadable' },
  // The server answers OK, and its reply is cut off.
  { code: 'UNIMPLEMENTED', details: /^No message received/, verdict: 'unreadable' },
  { code: 'INTERNAL', place: 'connection', details: /^Received RST_STREAM/, verdict: 'gone' },
];

export function verdictOf({
  code,
  details,
  place,
}: Pick<EndpointFailure, 'code' | 'details' | 'place'>): Verdict {
  if (place === 'here') {
    return 'unsent';
  }
  const name = nameOf(code);
  const text = TEXTS.find(
    (each) =>
      each.code === name &&
      (each.place === undefined || each.place === place) &&
      each.details.test(details),
  );
  const [, connection, server] = STATUSES[code] ?? ['', 'failed', 'failed'];
  return text?.verdict ?? (place === 'server' ? server : connection);
}

/**
 * An EndpointFailure allows a search for the rows at fault.
 *
 * @param hasRun true if an earlier call for the batch succeeded
 */
export function batchErrorOf(
  failure: EndpointFailure,
  hasRun = false,
): ServingError | EndpointFailure {
  const { message } = failure;
  const options = { cause: failure };
  switch (verdictOf(failure)) {
    case 'unsent':
      return hasRun
        ? new PartitionLostError(message, options)
        : new NotStartedError(message, options);
    case 'tooLarge':
      return new TooLargeToSendError(message, options);
    case 'unsendable':
      return new ReplyTooLargeError(
        `${message}; the batch has run. Raise the limit of the server, or lower batchSize`,
        options,
      );
    case 'unreadable':
      return new InvalidOutputError(message, options);
    case 'busy':
      return new ServerBusyError(message, options);
    case 'gone':
      return new PartitionLostError(message, options);
    default:
      return failure;
  }
}

export function isUnimplemented(error: unknown): boolean {
  return error instanceof EndpointFailure && nameOf(error.code) === 'UNIMPLEMENTED';
}

export function isDown(error: unknown): boolean {
  return (
    error instanceof ModelNotReadyError ||
    (error instanceof EndpointFailure &&
      ['UNAVAILABLE', 'DEADLINE_EXCEEDED'].includes(nameOf(error.code)))
  );
}

function nameOf(code: number): string {
  return STATUSES[code]?.[0] ?? `status ${code}`;
}
