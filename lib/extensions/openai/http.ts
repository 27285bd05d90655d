import { type IncomingMessage, STATUS_CODES } from 'node:http';
import { HttpException, HttpStatus, type HttpServer } from '@nestjs/common';
import { isServingError } from '../../index.js';
import { BodyThread } from '../../encoding/body-thread.js';
import { type ParsedJson, parseJson, type TextLimits } from '../../encoding/json.js';
import { type OwnBuffer, type OwnBytes, pathOfTarget, readBytes } from '../../encoding/http.js';
import { type AbortSignalLike } from '../../doors/calls.js';
import { isRecord } from '../../doors/options.js';
import { formatValue } from '../../doors/text.js';

export type Body = Readonly<Record<string, unknown>>;

/** Refused request, in OpenAI's terms. */
export class RequestError extends Error {
  override readonly name = 'RequestError';

  constructor(
    message: string,
    /** Field at fault. */
    readonly param: string | null = null,
    readonly status: HttpStatus = HttpStatus.BAD_REQUEST,
    readonly code: string | null = null,
  ) {
    super(message);
  }
}

export interface ErrorAnswer {
  readonly status: number;
  readonly headers: Readonly<Record<string, string>>;
  readonly error: {
    readonly message: string;
    readonly type: string;
    readonly param: string | null;
    readonly code: string | null;
  };
  /** True if the application is at fault, for the log. */
  readonly isFault: boolean;
}

/** Statuses that differ in OpenAI's API. Its clients retry 429, and not 400. */
const STATUSES: Readonly<Record<string, number>> = {
  SERVING_TOO_LARGE: HttpStatus.BAD_REQUEST,
  SERVING_OVERLOADED: HttpStatus.TOO_MANY_REQUESTS,
  SERVING_DEADLINE_TOO_SHORT: HttpStatus.TOO_MANY_REQUESTS,
};

/** Codes that OpenAI's clients look for. */
const CODES: Readonly<Record<string, string>> = {
  SERVING_INVALID_INPUT: 'invalid_value',
  SERVING_TOO_LARGE: 'context_length_exceeded',
  SERVING_OVERLOADED: 'rate_limit_exceeded',
  SERVING_DEADLINE_TOO_SHORT: 'rate_limit_exceeded',
};

/**
 * Maps an error as https://platform.openai.com/docs/guides/error-codes says. Only client faults and
 * Nest exceptions show their message; others may reveal details of the application.
 */
export function errorAnswer(error: unknown): ErrorAnswer {
  const cause = error instanceof HttpException ? error.cause : error;
  const retryAfter = isServingError(cause) ? cause.retryAfter : undefined;
  const { status, message, param = null, code = null } = partsOf(error);
  return {
    status,
    headers: {
      ...(retryAfter !== undefined && { 'retry-after': String(retryAfter) }),
      // Clients would repeat a late call, and be late again.
      ...(status === 504 && { 'x-should-retry': 'false' }),
    },
    error: { message, type: typeOf(status), param, code },
    isFault: status === 500 && !(error instanceof HttpException),
  };
}

/** Field that a serving refuses, by message and code. */
export type FieldOf = (message: string, code: string | null) => string | undefined;

/** Names a refused field; other errors stay as they are. */
function refusalOf(fieldOf: FieldOf, error: unknown): unknown {
  const { status, error: answer } = errorAnswer(error);
  const { message, code } = answer;
  const field = isServingError(error) && status === 400 ? fieldOf(message, code) : undefined;
  if (field === undefined) {
    return error;
  }
  // Clients of some routes name the list of documents otherwise.
  const own = message.replace(/^documents(?=\[)/, field.replace(/\[.*/, ''));
  const text = own.includes(field) ? own : `"${field}": ${own}`;
  return new RequestError(text, field, status, code);
}

export async function naming<Reply>(fieldOf: FieldOf, call: () => Promise<Reply>): Promise<Reply> {
  try {
    return await call();
  } catch (error) {
    throw refusalOf(fieldOf, error);
  }
}

type Parts = Pick<ErrorAnswer, 'status'> &
  Pick<ErrorAnswer['error'], 'message'> &
  Partial<ErrorAnswer['error']>;

function partsOf(error: unknown): Parts {
  if (error instanceof RequestError) {
    const { status, message, param, code } = error;
    return { status, message, param, code };
  }
  if (isServingError(error)) {
    const { code, expose } = error;
    const status = STATUSES[code] ?? error.statusCode;
    const message = expose ? error.message : `${STATUS_CODES[status]} (${code})`;
    return { status, message, code: CODES[code] ?? code };
  }
  if (error instanceof HttpException) {
    const status = error.getStatus();
    const code = status === 401 ? 'invalid_api_key' : status === 429 ? 'rate_limit_exceeded' : null;
    return { status, message: error.message, code };
  }
  return { status: 500, message: STATUS_CODES[500]! };
}

function typeOf(status: number): string {
  if (status === 429) {
    return 'rate_limit_exceeded';
  }
  return status < 500 ? 'invalid_request_error' : 'server_error';
}

const hiddenTypes = new WeakMap<IncomingMessage, string | undefined>();

/** Content type of the client, which the private type replaces. */
export function typeOfBody(request: IncomingMessage): string {
  return hiddenTypes.get(request) ?? request.headers['content-type'] ?? '';
}

/** Type without a body parser. */
const PRIVATE_TYPE = 'application/x-openai-request';

interface FastifyInstance {
  addHook(
    name: 'onRequest',
    hook: (request: FastifyRequest, reply: unknown, done: () => void) => void,
  ): void;
  hasContentTypeParser(type: string): boolean;
  addContentTypeParser(
    type: string,
    parser: (request: unknown, payload: unknown, done: (error: null) => void) => void,
  ): void;
}

interface FastifyRequest {
  readonly raw: IncomingMessage;
  /** Pattern of the route, if any. */
  readonly routeOptions: { readonly url?: string };
}

/**
 * Hides bodies from the application's parsers, which read before guards run, refuse large bodies,
 * and answer errors in another form. Call it before the application is initialised.
 *
 * @param paths returns the paths with such bodies, at the first request
 */
export function leaveBodiesUnparsed(adapter: HttpServer, paths: () => ReadonlySet<string>): void {
  let known: ReadonlySet<string> | undefined;
  const hideType = (request: IncomingMessage, route: string): void => {
    const { method, headers } = request;
    known ??= paths();
    // A global prefix may make two doors name one path.
    if (method === 'POST' && known.has(pathOf(route)) && !hiddenTypes.has(request)) {
      hiddenTypes.set(request, headers['content-type']);
      headers['content-type'] = PRIVATE_TYPE;
    }
  };
  if (adapter.getType() === 'fastify') {
    const fastify = adapter.getInstance() as FastifyInstance;
    fastify.addHook('onRequest', ({ raw, routeOptions }, _reply, done) => {
      hideType(raw, routeOptions.url ?? raw.url ?? '');
      done();
    });
    // An application may have doors with several paths.
    if (!fastify.hasContentTypeParser(PRIVATE_TYPE)) {
      fastify.addContentTypeParser(PRIVATE_TYPE, (_request, _payload, done) => done(null));
    }
  } else {
    adapter.use((request: IncomingMessage, _response: unknown, next: () => void) => {
      hideType(request, request.url ?? '');
      next();
    });
  }
}

export function eventOf(value: object): string {
  return `data: ${JSON.stringify(value)}\n\n`;
}

/**
 * Events of a stream that has begun: until its first output it fails like a call. Later, clients
 * read an error in an event, because the status has left.
 *
 * @param fail writes this event
 */
export async function beginEvents<Output>(
  stream: AsyncIterable<unknown>,
  write: (outputs: AsyncIterable<Output>) => AsyncIterable<string>,
  fail = (error: ErrorAnswer['error']): string => eventOf({ error }),
): Promise<AsyncIterable<string>> {
  const source = stream[Symbol.asyncIterator]();
  const first = await source.next();
  async function* outputs(): AsyncGenerator<Output> {
    for (let next = first; next.done !== true; next = await source.next()) {
      yield (next.value as { readonly output: Output }).output;
    }
  }
  async function* events(): AsyncGenerator<string> {
    try {
      yield* write(outputs());
    } catch (error) {
      yield fail(errorAnswer(error).error);
    }
  }
  return endingWith(events(), source);
}

/** Ends the source with its events, also if unread: a generator would not begin. */
function endingWith(
  events: AsyncGenerator<string>,
  source: AsyncIterator<unknown>,
): AsyncIterable<string> {
  let ended: Promise<unknown> | undefined;
  const end = (): Promise<unknown> => (ended ??= Promise.resolve(source.return?.()));
  const iterator: AsyncIterator<string> = {
    async next() {
      const result = await events.next();
      if (result.done) {
        await end();
      }
      return result;
    },
    async return() {
      await Promise.all([end(), events.return(undefined)]);
      return { done: true, value: undefined };
    },
  };
  return { [Symbol.asyncIterator]: () => iterator };
}

/** Path as platforms compare it: without query, case and final slash, as on Express. */
export function pathOf(url: string): string {
  return pathOfTarget(url).toLowerCase().replace(/\/$/, '');
}

/** Node's own request, or Fastify's around it. */
export type PlatformRequest = IncomingMessage & {
  readonly raw?: IncomingMessage;
  readonly body?: unknown;
};

/**
 * Reads a JSON object, or takes what a parser of the application has read.
 *
 * @throws RequestError for other bodies, and beyond the limit; we discard the rest, so that the
 * client gets the answer
 * @throws CallCancelledError if the client disconnects early
 */
export async function readBody(
  request: PlatformRequest,
  limit: number,
  signal?: AbortSignalLike,
): Promise<Body> {
  const { raw = request, body } = request;
  const json = raw.readableEnded ? body : await parsed(await bytesOf(raw, limit), signal);
  if (!isRecord(json)) {
    throw new RequestError(
      `The body of the request is ${formatValue(json)}, and must be an object`,
    );
  }
  return json;
}

/** Bytes that we copy, parse or write in one go. */
export const SMALL_BODY = 2 ** 20;

/** @throws as `readBody` */
export function bytesOf(request: IncomingMessage, limit: number): Promise<OwnBuffer> {
  const encoding = request.headers['content-encoding'] ?? 'identity';
  if (encoding !== 'identity') {
    request.resume();
    throw new RequestError(
      'The body of the request is compressed; send it without a content encoding',
      null,
      HttpStatus.UNSUPPORTED_MEDIA_TYPE,
    );
  }
  return readBytes(request, {
    limit,
    tooLarge: (message) => new RequestError(message, null, HttpStatus.PAYLOAD_TOO_LARGE),
  });
}

/** A text needs no list or object, and a document at most one. */
export const textLimits: TextLimits = {
  depth: 32,
  nodes: 2 ** 15,
  values: 2 ** 17,
  advice: 'send less at once',
};

export interface LargeBody {
  readonly body: OwnBytes;
}

const bodyThread = new BodyThread<LargeBody, ParsedJson>('extensions/openai/body-thread');

async function parsed(bytes: OwnBuffer, signal: AbortSignalLike | undefined): Promise<unknown> {
  const reading = bytes.length > SMALL_BODY ? bodyThread.read({ body: bytes }, signal) : undefined;
  const json = reading ? await reading : parseJson(bytes, textLimits);
  if ('fault' in json) {
    throw new RequestError(`The body of the request ${json.fault}`);
  }
  return json.value;
}
