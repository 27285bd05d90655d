import type { IncomingMessage } from 'node:http';
import type { Readable, Transform } from 'node:stream';
import { createGunzip, createInflate } from 'node:zlib';
import { UnsupportedMediaTypeException } from '@nestjs/common';
import { CallCancelledError, InvalidInputError, RequestTooLargeError } from '../../../../index.js';
import { messageOf, formatValue } from '../../../../internal.js';

/** Largest element size; tensors can be views of a body aligned to it. */
const ALIGNMENT = 8;

interface BodyOptions {
  /** In bytes, after decompression. */
  readonly limit: number;
  /** Index of the byte to align in memory. */
  readonly aligned: number;
}

/**
 * Reads and decompresses the whole body.
 *
 * @throws RequestTooLargeError beyond the limit; we discard the rest, so that the client gets the
 * answer
 * @throws CallCancelledError if the client disconnects before the end
 */
export async function readBody(
  request: IncomingMessage,
  { limit, aligned }: BodyOptions,
): Promise<Buffer> {
  if (Number(request.headers['content-length'] ?? 0) > limit) {
    request.resume();
    throw tooLarge(limit);
  }
  const chunks = await readChunks(request, limit);
  const size = chunks.reduce((sum, chunk) => sum + chunk.length, 0);
  const start = (ALIGNMENT - (aligned % ALIGNMENT)) % ALIGNMENT;
  const body = Buffer.allocUnsafeSlow(start + size).subarray(start);
  let at = 0;
  for (const chunk of chunks) {
    at += chunk.copy(body, at);
  }
  return body;
}

function readChunks(request: IncomingMessage, limit: number): Promise<readonly Buffer[]> {
  if (request.readableEnded) {
    throw new Error(
      'The body of the request was read by a parser of the application before the protocol could',
    );
  }
  const decompressor = decompressorOf(request);
  const source: Readable = decompressor ? request.pipe(decompressor) : request;
  return new Promise((resolve, reject) => {
    const chunks: Buffer[] = [];
    let size = 0;
    const fail = (error: Error): void => {
      source.removeListener('data', take);
      if (decompressor) {
        request.unpipe(decompressor);
        decompressor.destroy();
      }
      request.resume();
      reject(error);
    };
    const take = (chunk: Buffer): void => {
      size += chunk.length;
      if (size > limit) {
        fail(tooLarge(limit));
      } else {
        chunks.push(chunk);
      }
    };
    source.on('data', take);
    source.once('end', () => resolve(chunks));
    // Stays, because a stream may fail again.
    decompressor?.on('error', (cause) =>
      fail(
        new InvalidInputError(`The body cannot be decompressed: ${messageOf(cause)}`, { cause }),
      ),
    );
    request.on('error', (error) => fail(request.complete ? error : left(error)));
    request.once('close', () => {
      if (!request.complete) {
        fail(left());
      }
    });
  });
}

function decompressorOf(request: IncomingMessage): Transform | undefined {
  const encoding = request.headers['content-encoding']?.trim().toLowerCase() ?? '';
  switch (encoding) {
    case '':
    case 'identity':
      return undefined;
    case 'gzip':
      return createGunzip();
    case 'deflate':
      return createInflate();
    default:
      throw new UnsupportedMediaTypeException(
        `The content encoding is ${formatValue(encoding)}; allowed are gzip and deflate`,
      );
  }
}

function left(cause?: Error): Error {
  return new CallCancelledError('The client has closed its connection inside its request', {
    cause,
  });
}

function tooLarge(limit: number): Error {
  return new RequestTooLargeError(
    `The body of the request has more than ${limit} bytes, the limit of this server (bodyLimit)`,
  );
}
