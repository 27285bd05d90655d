import type { IncomingMessage, ServerResponse } from 'node:http';
import { Readable, type Transform } from 'node:stream';
import { pipeline } from 'node:stream/promises';
import { createDeflate, createGzip } from 'node:zlib';
import { HttpStatus } from '@nestjs/common';
import { type HttpReply, jsonReply } from './write-reply.js';

/** An Express response, or a Fastify reply around it. */
export type PlatformResponse =
  | (ServerResponse & { readonly raw?: undefined })
  | {
      readonly raw: ServerResponse;
      hijack(): unknown;
      getHeaders(): Readonly<Record<string, string | number | string[] | undefined>>;
    };

/** In bytes; compressing less gains nothing. */
const LEAST_COMPRESSED = 1024;
const FASTEST = { level: 1 };

interface Closing {
  /** If true, each reply closes its connection. */
  readonly isClosing: boolean;
}

export function answer(response: PlatformResponse, value: unknown, server: Closing): Promise<void> {
  return answerWith(response, HttpStatus.OK, jsonReply(value), server);
}

/**
 * Bypasses the application's interceptors and serialisers, which would change the format. Keeps
 * headers already set.
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

function rawOf(response: PlatformResponse): ServerResponse {
  if (response.raw === undefined) {
    return response;
  }
  response.hijack();
  for (const [name, value] of Object.entries(response.getHeaders())) {
    if (value !== undefined) {
      response.raw.setHeader(name, value);
    }
  }
  return response.raw;
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
