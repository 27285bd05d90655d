import type { IncomingMessage } from 'node:http';
import type { Transform } from 'node:stream';
import { createGunzip, createInflate } from 'node:zlib';
import { UnsupportedMediaTypeException } from '@nestjs/common';
import { InvalidInputError, RequestTooLargeError, Tensor } from '../../../../index.js';
import { formatValue, messageOf } from '../../../../doors/text.js';
import { storageClasses } from '../../../../doors/values.js';
import { type BodyOptions, type OwnBuffer, readBytes } from '../../../../encoding/http.js';
import { datatypeOf } from '../../../../encoding/json-tensor.js';
import { ReadContext } from '../../../../encoding/json.js';
import { jsonLimits } from '../call-input.js';
import { type Port } from '../options.js';
import type { InferenceRequest } from '../inference-request.js';
import { PRIVATE_TYPE } from './routes.js';
import { elementOf, tensorOfBytes } from '../../wire/tensor-bytes.js';

/**
 * Decompresses the body, too.
 *
 * @throws RequestTooLargeError beyond the limit, and as {@link readBytes}
 */
export async function readBody(
  request: IncomingMessage,
  options: Pick<BodyOptions, 'limit' | 'aligned'>,
): Promise<OwnBuffer> {
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
  try {
    return await readBytes(request, { ...options, tooLarge, decompressor });
  } catch (cause) {
    if (cause === decompressor?.errored) {
      throw new InvalidInputError(`The body cannot be decompressed: ${messageOf(cause)}`, {
        cause,
      });
    }
    throw cause;
  }
}

const tooLarge = (message: string): Error => new RequestTooLargeError(message);

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

interface RawTarget {
  readonly model: string;
  readonly version: string | undefined;
  readonly inputs: readonly Port[];
}

/**
 * A body without JSON is one row of the only input: its elements, or a BYTES element's text.
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
