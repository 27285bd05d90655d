import type { IncomingMessage } from 'node:http';
import { Readable, type Transform } from 'node:stream';
import { pipeline } from 'node:stream/promises';
import { createDeflate, createGzip } from 'node:zlib';
import { HttpStatus } from '@nestjs/common';
import { isUtf8 } from 'node:buffer';
import { InvalidInputError, Tensor } from '../../../../index.js';
import { type PlatformResponse, rawOf } from '../../../../encoding/http.js';
import { tensorInParts } from '../../../../encoding/json-tensor.js';
import { writeInTurns } from '../../../../encoding/turns.js';
import type { InferenceReply, InferenceRequest } from '../inference-request.js';
import { bytesOfTensor, datatypeOfTensor } from '../../wire/tensor-bytes.js';

/** Bytes; compressing fewer gains nothing. */
const LEAST_COMPRESSED = 1024;
const FASTEST = { level: 1 };

interface Closing {
  /** Each reply then closes its connection. */
  readonly isClosing: boolean;
}

export function answer(response: PlatformResponse, value: unknown, server: Closing): Promise<void> {
  return answerWith(response, HttpStatus.OK, jsonReply(value), server);
}

/**
 * Bypasses interceptors and serialisers, which would change the format. Keeps headers already set.
 */
export async function answerWith(
  response: PlatformResponse,
  status: number,
  { headers, chunks, isCompressible }: HttpReply,
  { isClosing }: Closing,
): Promise<void> {
  const raw = rawOf(response);
  if (raw.headersSent) {
    return;
  }
  const size = chunks.reduce((sum, chunk) => sum + chunk.byteLength, 0);
  const compression =
    isCompressible && size >= LEAST_COMPRESSED ? compressionFor(raw.req) : undefined;
  if (isClosing) {
    raw.shouldKeepAlive = false;
  }
  if (compression) {
    raw.appendHeader('vary', 'accept-encoding');
    raw.writeHead(status, { ...headers, 'content-encoding': compression.name });
    // A client that disconnects is no error.
    await pipeline(Readable.from(chunks), compression.stream, raw).catch(() => undefined);
    return;
  }
  raw.writeHead(status, { ...headers, 'content-length': String(size) });
  // The chunks leave together, uncopied.
  raw.cork();
  chunks.forEach((chunk) => raw.write(chunk));
  raw.end();
}

export function requestOf(response: PlatformResponse): IncomingMessage {
  return (response.raw ?? response).req;
}

function compressionFor({
  headers,
}: IncomingMessage): { readonly name: string; readonly stream: Transform } | undefined {
  const given = headers['accept-encoding'];
  const accepted = (typeof given === 'string' ? given : '')
    .split(',')
    .map((each) => each.split(';').map((part) => part.trim().toLowerCase()))
    .filter(([, quality]) => !/^q=0(\.0*)?$/.test(quality ?? ''))
    .map(([name]) => name);
  if (accepted.includes('gzip')) {
    return { name: 'gzip', stream: createGzip(FASTEST) };
  }
  return accepted.includes('deflate')
    ? { name: 'deflate', stream: createDeflate(FASTEST) }
    : undefined;
}

export interface HttpReply {
  readonly headers: Readonly<Record<string, string>>;
  readonly chunks: readonly Uint8Array[];
  /** Outputs only: some clients don't decompress other replies. */
  readonly isCompressible?: boolean;
}

/** Exactly this type: clients compare it. */
const JSON_HEADERS = { 'content-type': 'application/json' };

export function jsonReply(value: unknown): HttpReply {
  return { headers: JSON_HEADERS, chunks: [Buffer.from(JSON.stringify(value))] };
}

export async function writeReply(
  reply: InferenceReply,
  request: InferenceRequest,
): Promise<HttpReply> {
  const { model, version, id, outputs } = reply;
  const binary: Uint8Array[] = [];
  const described = Array.from(outputs, ([name, tensor]) => {
    if (!isBinary(name, request)) {
      return { name, ...tensorAsJson(name, tensor) };
    }
    const bytes = bytesOfTensor(tensor);
    binary.push(bytes);
    return {
      name,
      datatype: datatypeOfTensor(tensor),
      shape: tensor.dims,
      parameters: { binary_data_size: bytes.length },
    };
  });
  const json = await writeInTurns({
    model_name: model,
    model_version: version,
    ...(id !== undefined && { id }),
    outputs: described,
  });
  if (binary.length === 0) {
    return { headers: JSON_HEADERS, chunks: json, isCompressible: true };
  }
  const length = json.reduce((sum, chunk) => sum + chunk.length, 0);
  return {
    headers: {
      'content-type': 'application/octet-stream',
      'inference-header-content-length': String(length),
    },
    chunks: [...json, ...binary],
    isCompressible: true,
  };
}

function isBinary(name: string, { outputs, parameters }: InferenceRequest): boolean {
  const own = outputs?.get(name)?.get('binary_data');
  return (own ?? parameters.get('binary_data_output')) === true;
}

/** @throws InvalidInputError for bytes that aren't UTF-8 */
function tensorAsJson(name: string, tensor: Tensor): object {
  if (tensor.type !== 'string') {
    return tensorInParts(tensor);
  }
  const texts = (tensor.data as readonly (string | Uint8Array)[]).map((element, i) => {
    if (typeof element === 'string') {
      return element;
    }
    if (isUtf8(element)) {
      return Buffer.from(element).toString();
    }
    throw new InvalidInputError(
      `The output "${name}" has bytes at ${i} that are not UTF-8, which JSON cannot hold; ask for ` +
        'it with the parameter binary_data',
    );
  });
  return tensorInParts(new Tensor('string', texts, tensor.dims));
}
