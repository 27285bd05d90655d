import { InvalidOutputError, PartitionLostError, type ServingError } from '../../errors.js';
import {
  NotStartedError,
  ReplyTooLargeError,
  ServerBusyError,
  TooLargeToSendError,
} from '../partition.js';

/**
 * Where the status of a failed call was made:
 * - `here`: on this side, and nothing of the call was sent;
 * - `connection`: on this side, after the call was sent: the connection broke, or the time was over;
 * - `server`: the server answered, or a proxy before it.
 */
export type StatusPlace = 'here' | 'connection' | 'server';

/** A call of an endpoint that failed. */
export class EndpointFailure extends Error {
  override readonly name = 'EndpointFailure';

  constructor(
    readonly url: string,
    /** The status code of gRPC. */
    readonly code: number,
    readonly details: string,
    readonly place: StatusPlace,
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

/**
 * What a status proves about the rows of its batch, and about the server:
 * - `unsent`: nothing has run; the server cannot be reached;
 * - `tooLarge`: nothing has run; the server read no more than the length of the message;
 * - `unsendable`: all has run; the reply is too large for a message of the server;
 * - `unreadable`: all has run; the reply is not one of the protocol;
 * - `busy`: rows may have run; the server is there, and has no room or no time;
 * - `gone`: rows may have run; the connection is lost, or the server has the model no longer, so it
 *   must state again that it is ready;
 * - `failed`: the model failed on the rows.
 */
type Verdict = 'unsent' | 'tooLarge' | 'unsendable' | 'unreadable' | 'busy' | 'gone' | 'failed';

/**
 * The status codes of gRPC by number, and what each proves if it was made of a broken connection and
 * if the server answered it. https://grpc.github.io/grpc/core/md_doc_statuscodes.html
 */
const STATUSES: readonly (readonly [name: string, connection: Verdict, server: Verdict])[] = [
  ['OK', 'gone', 'failed'],
  // A server that is shut down by force answers CANCELLED.
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

/** Statuses whose text proves more than their code. */
const TEXTS: readonly {
  readonly code: string;
  readonly place?: StatusPlace;
  readonly details: RegExp;
  readonly verdict: Verdict;
}[] = [
  // gRPC in C++, Python, Go and JavaScript, of a request that is larger than the server reads.
  {
    code: 'RESOURCE_EXHAUSTED',
    place: 'server',
    details: /received message larger than/i,
    verdict: 'tooLarge',
  },
  // Of a reply: it was made, so the rows have run.
  { code: 'RESOURCE_EXHAUSTED', details: /message larger than/i, verdict: 'unsendable' },
  // HTTP/2 promises that the server did nothing for a stream that it refuses.
  {
    code: 'UNAVAILABLE',
    place: 'connection',
    details: /^Stream refused by server/,
    verdict: 'unsent',
  },
  { code: 'INTERNAL', details: /^Response message parsing error/, verdict: 'unreadable' },
  { code: 'INTERNAL', place: 'connection', details: /^Received RST_STREAM/, verdict: 'gone' },
];

/** What the failure of a call proves. */
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
 * The error of a batch whose call failed. One that is no ServingError is the model's: it fails the
 * batch, in which the rows that cause it may be searched.
 *
 * @param hasRun an earlier call for rows of the same batch succeeded
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
  return STATUSES[code]?.[0] ?? `status ${code}`;
}
