import { once } from 'node:events';
import { createServer, type IncomingMessage, request as httpRequest } from 'node:http';
import { type AddressInfo, connect } from 'node:net';
import { afterEach, describe, expect, it } from '@jest/globals';
import { HttpException, UnauthorizedException } from '@nestjs/common';
import {
  BatchFailedError,
  CallCancelledError,
  DeadlineExceededError,
  DeadlineTooShortError,
  InvalidInputError,
  OverloadedError,
  PartitionLostError,
  RequestTooLargeError,
  RunTimeoutError,
  ServingClosedError,
  ServingUnavailableError,
} from '../../../lib/index.js';
import {
  errorAnswer,
  pathOf,
  readBody,
  RequestError,
} from '../../../lib/extensions/openai/http.js';

const servers: ReturnType<typeof createServer>[] = [];
afterEach(() => {
  servers.splice(0).forEach((server) => {
    server.close();
    server.closeAllConnections();
  });
});

async function listening(handle: (request: IncomingMessage) => Promise<unknown>): Promise<number> {
  const server = createServer((request, response) => {
    void handle(request).finally(() => response.end());
  });
  servers.push(server);
  server.listen(0, '127.0.0.1');
  await once(server, 'listening');
  return (server.address() as AddressInfo).port;
}

function withResolvers() {
  let resolve!: (value: unknown) => void;
  const promise = new Promise((done) => (resolve = done));
  return { promise, resolve };
}

const refused = (fault: string) => ({
  name: 'RequestError',
  status: 400,
  message: expect.stringContaining(fault),
});

/** The body of a request that is sent in these parts, as the server reads it. */
const bodyOf = (...parts: readonly string[]): Promise<unknown> => read(parts, 1000);

async function read(
  parts: readonly string[],
  limit: number,
  signal?: AbortSignal,
): Promise<unknown> {
  const bodies: Promise<unknown>[] = [];
  const port = await listening((request) => {
    const reading = readBody(request, limit, signal);
    bodies.push(reading);
    return reading.catch(() => {});
  });
  const request = httpRequest({ port, method: 'POST' });
  parts.forEach((part) => request.write(part));
  request.end();
  const [response] = (await once(request, 'response')) as [IncomingMessage];
  response.resume();
  return bodies[0];
}

describe("The body of a request of OpenAI's API", () => {
  it('is read in parts, with brackets and quotes in its texts', async () => {
    const deep = '['.repeat(100);
    const texts = [deep, '\\', deep, `"${deep}`, `\\"${deep}`, `\\\\"${deep}`, 'ü\u2028'];
    const json = JSON.stringify({ input: texts });

    expect(await bodyOf(json.slice(0, 20), json.slice(20))).toEqual({ input: texts });
  });

  it.each<[string, number, string, readonly string[]]>([
    ['in one part that is too large', 413, 'more than 1000 bytes', ['a'.repeat(1001)]],
    ['in parts that are too large', 413, 'more than 1000 bytes', Array(3).fill('a'.repeat(400))],
    ['with lists in lists', 400, 'deeper than 32 levels', ['['.repeat(33)]],
    ['with an open text', 400, 'is not JSON', ['{"a":"[[']],
    ['that is a list', 400, 'must be an object', ['[]']],
    ['that is null', 400, 'must be an object', ['null']],
  ])('%s is refused', async (_, status, message, parts) => {
    await expect(bodyOf(...parts)).rejects.toMatchObject({
      name: 'RequestError',
      status,
      message: expect.stringContaining(message),
    });
  });

  it('[FZ2] of more than a mebibyte is parsed in a thread, within the same limits', async () => {
    const most = 2 ** 22;
    const input = Array.from({ length: 300 }, (_, i) => `${i} ü `.repeat(1000));
    const values = `[${'1,'.repeat(2 ** 20)}1]`;
    const lists = `[${'[],'.repeat(2 ** 20)}1]`;

    expect(await read([JSON.stringify({ input })], most)).toEqual({ input });
    await expect(read([values], most)).rejects.toMatchObject(refused('more than 131072 values'));
    await expect(read([lists], most)).rejects.toMatchObject(
      refused('more than 32768 lists and objects; send less at once'),
    );
    await expect(read(['{', 'a'.repeat(2 ** 21)], most)).rejects.toMatchObject(
      refused('is not JSON'),
    );
    const leaving = AbortSignal.abort(new Error('left'));
    await expect(read([JSON.stringify({ input })], most, leaving)).rejects.toThrow('left');
  });

  it('is what a parser of the application has read before', async () => {
    const request = { readableEnded: true, body: { model: 'a' } };

    expect(await readBody(request as unknown as IncomingMessage, 1000)).toEqual({ model: 'a' });
  });

  it.each(['end', 'resetAndDestroy'] as const)(
    'A client that leaves inside it by %s has cancelled its call',
    async (how) => {
      const { promise: failed, resolve } = withResolvers();
      const port = await listening((request) => {
        readBody(request, 1000).catch(resolve);
        socket[how]();
        return failed;
      });
      const socket = connect(port, '127.0.0.1').on('error', () => {});
      socket.write('POST / HTTP/1.1\r\nHost: x\r\nContent-Length: 100\r\n\r\n{"input"');

      expect(await failed).toBeInstanceOf(CallCancelledError);
    },
  );
});

it('A path is compared without its query, its case and a slash at its end', () => {
  expect(pathOf('/V1/Embeddings/?a=/b')).toBe('/v1/embeddings');
});

describe("The answer to an error, by OpenAI's API", () => {
  const detail = 'detail';

  const answers: [Error, number, string | null, string, Record<string, string>][] = [
    [new InvalidInputError(detail), 400, 'invalid_value', detail, {}],
    [new RequestTooLargeError(detail), 400, 'context_length_exceeded', detail, {}],
    [
      new OverloadedError(detail, { retryAfter: 3 }),
      429,
      'rate_limit_exceeded',
      'Too Many Requests (SERVING_OVERLOADED)',
      { 'retry-after': '3' },
    ],
    [
      new DeadlineTooShortError(detail, { retryAfter: 1 }),
      429,
      'rate_limit_exceeded',
      'Too Many Requests (SERVING_DEADLINE_TOO_SHORT)',
      { 'retry-after': '1' },
    ],
    [
      new ServingClosedError(detail),
      503,
      'SERVING_CLOSED',
      'Service Unavailable (SERVING_CLOSED)',
      {},
    ],
    [
      new ServingUnavailableError(detail, { retryAfter: 2 }),
      503,
      'SERVING_UNAVAILABLE',
      'Service Unavailable (SERVING_UNAVAILABLE)',
      { 'retry-after': '2' },
    ],
    [
      new PartitionLostError(detail),
      503,
      'SERVING_PARTITION_LOST',
      'Service Unavailable (SERVING_PARTITION_LOST)',
      {},
    ],
    [
      new DeadlineExceededError(detail),
      504,
      'SERVING_DEADLINE_EXCEEDED',
      'Gateway Timeout (SERVING_DEADLINE_EXCEEDED)',
      { 'x-should-retry': 'false' },
    ],
    [
      new RunTimeoutError(detail),
      504,
      'SERVING_RUN_TIMEOUT',
      'Gateway Timeout (SERVING_RUN_TIMEOUT)',
      { 'x-should-retry': 'false' },
    ],
    [
      new BatchFailedError(detail),
      500,
      'SERVING_BATCH_FAILED',
      'Internal Server Error (SERVING_BATCH_FAILED)',
      {},
    ],
    [new Error(detail), 500, null, 'Internal Server Error', {}],
    [new RequestError(detail, 'input', 404, 'model_not_found'), 404, 'model_not_found', detail, {}],
    [new UnauthorizedException(detail), 401, 'invalid_api_key', detail, {}],
    [new HttpException(detail, 403), 403, null, detail, {}],
    [
      new HttpException(detail, 429, { cause: new OverloadedError('', { retryAfter: 7 }) }),
      429,
      'rate_limit_exceeded',
      detail,
      { 'retry-after': '7' },
    ],
  ];

  it.each(answers.map(([error, ...answer]) => [error.name, ...answer, error] as const))(
    'is for %s the status %d and the code %s',
    (_, status, code, message, headers, error) => {
      const type =
        status === 429
          ? 'rate_limit_exceeded'
          : status < 500
            ? 'invalid_request_error'
            : 'server_error';
      const param = error instanceof RequestError ? 'input' : null;

      expect(errorAnswer(error)).toEqual({
        status,
        headers,
        error: { message, type, param, code },
        isFault: status === 500,
      });
    },
  );
});
