import type { IncomingMessage } from 'node:http';
import type { Readable, Transform } from 'node:stream';
import { createGunzip, createInflate } from 'node:zlib';
import { UnsupportedMediaTypeException } from '@nestjs/common';
import {
  CallCancelledError,
  InvalidInputError,
  RequestTooLargeError,
  Tensor,
} from '../../../../index.js';
import { formatValue, messageOf } from '../../../../doors/text.js';
import { storageClasses } from '../../../../doors/values.js';
import { datatypeOf } from '../../../../encoding/json-tensor.js';
import { ReadContext } from '../../../../encoding/json.js';
import { Turns } from '../../../../encoding/turns.js';
import { jsonLimits } from '../call-input.js';
import { type Port } from '../options.js';
import type { InferenceRequest } from '../inference-request.js';
import { PRIVATE_TYPE } from './routes.js';
import { elementOf, tensorOfBytes } from '../../wire/tensor-bytes.js';

/** Largest element size: an aligned body can be viewed as tensors. */
const ALIGNMENT = 8;

interface BodyOptions {
  /** Bytes after decompression. */
  readonly limit: number;
  /** Index of the byte to align in memory. */
  readonly aligned: number;
}

/**
 * Also decompresses the body.
 *
 * @throws RequestTooLargeError beyond the limit; the rest is discarded, so the client gets the
 * answer
 * @throws CallCancelledError if the client disconnects before the end
 */
export async function readBody(
  request: IncomingMessage,
  { limit, aligned }: BodyOptions,
): Promise<Buffer<ArrayBuffer>> {
  if (Number(request.headers['content-length'] ?? 0) > limit) {
    request.resume();
    throw tooLarge(limit);
  }
  const chunks = await readChunks(request, limit);
  const size = chunks.reduce((sum, chunk) => sum + chunk.length, 0);
  const start = (ALIGNMENT - (aligned % ALIGNMENT)) % ALIGNMENT;
  const body = Buffer.allocUnsafeSlow(start + size).subarray(start);
  const turns = new Turns();
  let at = 0;
  for (const chunk of chunks) {
    at += chunk.copy(body, at);
    if (turns.isOver) {
      await turns.next();
    }
  }
  return body;
}

function readChunks(request: IncomingMessage, limit: number): Promise<readonly Buffer[]> {
  if (request.readableEnded && request.headers['content-type'] !== PRIVATE_TYPE) {
    throw new InvalidInputError(
      `The URL ${formatValue(request.url)} is not written as the protocol states it, such as ` +
        '/v2/models/NAME/infer, so that its body was read as a call of the application',
    );
  }
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
    // Stays: a stream may fail again.
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

interface RawTarget {
  readonly model: string;
  readonly version: string | undefined;
  readonly inputs: readonly Port[];
}

/**
 * Without JSON, a body is one row of the only input: its elements, or a BYTES element's text.
 *
 * @throws InvalidInputError for several inputs, or several open sizes in a row
 */
export function rawRequest(body: Buffer, { model, version, inputs }: RawTarget): InferenceRequest {
  const [port, ...others] = inputs;
  const context = new ReadContext({
    limits: jsonLimits,
    name: 'body',
    source: 'the request',
    allowsBytes: true,
  });
  if (!port || others.length > 0) {
    throw new InvalidInputError(
      `Model "${model}" has ${others.length + 1} inputs; a body without JSON is for a model with one`,
    );
  }
  const tensor =
    port.type === 'string'
      ? new Tensor('string', [elementOf(body, 0, context)], oneRow(model, port, 1))
      : tensorOfBytes(
          datatypeOf(port.type),
          oneRow(model, port, body.length / storageClasses.get(port.type)!.BYTES_PER_ELEMENT),
          body,
          context,
        );
  const parameters = new Map([['binary_data_output', true]]);
  return { model, version, parameters, inputs: new Map([[port.name, tensor]]) };
}

function oneRow(model: string, { name, shape, batchAxis }: Port, elements: number): number[] {
  const sizes = shape.map((size, axis) => (axis === batchAxis ? 1 : size));
  if (sizes.filter((size) => size === -1).length > 1) {
    throw new InvalidInputError(
      `The input "${name}" of model "${model}" has the shape [${shape.join(', ')}], which the ` +
        'number of its bytes does not tell; describe it in JSON',
    );
  }
  const known = sizes.reduce((product, size) => (size === -1 ? product : product * size), 1);
  return sizes.map((size) => (size === -1 ? Math.floor(elements / known) || 0 : size));
}
