import type { IncomingMessage, ServerResponse } from 'node:http';
import type { Readable, Transform } from 'node:stream';
import { CallCancelledError } from '../core/errors.js';
import { Turns } from './turns.js';

/**
 * Bytes in memory that is not shared, as `Uint8Array<ArrayBuffer>`, which declarations can't name:
 * before TypeScript 5.7 the class has no parameter.
 */
export type OwnBytes = ReturnType<typeof Uint8Array.of>;

/** A `Buffer<ArrayBuffer>`. */
export type OwnBuffer = ReturnType<typeof Buffer.allocUnsafeSlow>;

/**
 * The path in a request's target, which may have a scheme, host and fragment
 * (https://datatracker.ietf.org/doc/html/rfc9112#section-3.2).
 */
export function pathOfTarget(target: string): string {
  return target.replace(/^https?:\/\/[^/?#]*/i, '').split(/[?#]/, 1)[0]!;
}

export type PlatformResponse =
  | (ServerResponse & { readonly raw?: undefined })
  | {
      readonly raw: ServerResponse;
      hijack(): unknown;
      getHeaders(): Readonly<Record<string, string | number | string[] | undefined>>;
    };

/** Node's own response. Keeps headers set before, as by CORS. */
export function rawOf(response: PlatformResponse): ServerResponse {
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

/** The largest element's bytes. */
const ALIGNMENT = 8;

export interface BodyOptions {
  /** Bytes after decompression. */
  readonly limit: number;
  readonly tooLarge: (message: string) => Error;
  readonly decompressor?: Transform | undefined;
  /** Index of the byte to align. */
  readonly aligned?: number | undefined;
}

/**
 * Discards bytes beyond the limit, so the client gets the answer.
 *
 * @throws CallCancelledError if the client disconnects before the end
 */
export async function readBytes(
  request: IncomingMessage,
  { limit, tooLarge, decompressor, aligned = 0 }: BodyOptions,
): Promise<OwnBuffer> {
  const refusal = (): Error =>
    tooLarge(
      `The body of the request has more than ${limit} bytes, the limit of this server (bodyLimit)`,
    );
  if (Number(request.headers['content-length'] ?? 0) > limit) {
    request.resume();
    throw refusal();
  }
  const source: Readable = decompressor ? request.pipe(decompressor) : request;
  const chunks: Buffer[] = [];
  let size = 0;
  await new Promise<void>((resolve, reject) => {
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
        fail(refusal());
      } else {
        chunks.push(chunk);
      }
    };
    source.on('data', take);
    source.once('end', resolve);
    // A stream may fail again.
    decompressor?.on('error', fail);
    request.on('error', (cause) => fail(request.complete ? cause : left(cause)));
    request.once('close', () => request.readableEnded || fail(left()));
  });
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

function left(cause?: Error): CallCancelledError {
  return new CallCancelledError('The client has closed its connection inside its request', {
    cause,
  });
}
