import type { IncomingMessage, ServerResponse } from 'node:http';
import { Readable, type Transform } from 'node:stream';
import { pipeline } from 'node:stream/promises';
import { createDeflate, createGzip } from 'node:zlib';
import { HttpStatus } from '@nestjs/common';
import { type HttpReply, jsonReply } from './write-reply.js';

/** A response of Express, or of Fastify around it. */
export type PlatformResponse =
  | (ServerResponse & { readonly raw?: undefined })
  | {
      readonly raw: ServerResponse;
      hijack(): unknown;
      getHeaders(): Readonly<Record<string, string | number | string[] | undefined>>;
    };

/** Smaller bodies gain nothing from compression. */
const LEAST_COMPRESSED = 1024;
const FASTEST = { level: 1 };

/** The part of the server that its replies need. */
interface Closing {
  /** Whether it shuts down, so that each reply ends its connection. */
  readonly isClosing: boolean;
}

/** Answers the request with the value as JSON. */
export function answer(response: PlatformResponse, value: unknown, server: Closing): Promise<void> {
  return answerWith(response, HttpStatus.OK, jsonReply(value), server);
}

/**
 * Answers the request itself: interceptors and serialisers of the application have other forms in
 * mind. Headers that they set before stay.
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
    // A client that leaves meanwhile is no error.
    await pipeline(Readable.from(chunks), compression.stream, raw).catch(() => undefined);
    return;
  }
  raw.writeHead(status, { ...headers, 'content-length': String(size) });
  // Together, so that views need no copy.
  raw.cork();
  chunks.forEach((chunk) => raw.write(chunk));
  raw.end();
}

/** The request of Node. */
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

/** The first compression of ours that the client accepts. */
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
