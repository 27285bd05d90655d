import {
  BadRequestException,
  PayloadTooLargeException,
  UnsupportedMediaTypeException,
} from '@nestjs/common';
import type { IncomingMessage } from 'node:http';
import { sampleBytes, samplesOf } from './pcm.js';

const mediaType = 'application/octet-stream';

/** A minute of sound. */
const mostBytes = 60 * 16_000 * sampleBytes;

/** The samples in the body of a request, which Nest's own body parsers leave alone. */
export async function readPiece(request: IncomingMessage): Promise<Float32Array> {
  const type = request.headers['content-type'];
  if (type !== mediaType) {
    throw new UnsupportedMediaTypeException(
      `Send raw 16-bit samples as ${mediaType}, not as ${type ?? 'nothing'}`,
    );
  }
  const pcm = await readBytes(request);
  if (pcm.length % sampleBytes !== 0) {
    throw new BadRequestException(`${pcm.length} bytes are no whole number of 16-bit samples`);
  }
  return samplesOf(pcm);
}

async function readBytes(request: IncomingMessage): Promise<Buffer> {
  const parts: Buffer[] = [];
  let length = 0;
  // Destroying the request would close the connection before the answer is sent.
  for await (const part of request.iterator({ destroyOnReturn: false }) as AsyncIterable<Buffer>) {
    parts.push(part);
    length += part.length;
    if (length > mostBytes) {
      throw new PayloadTooLargeException(`At most ${mostBytes} bytes at a time, which is a minute`);
    }
  }
  return Buffer.concat(parts);
}
