import { PayloadTooLargeException } from '@nestjs/common';
import type { IncomingMessage } from 'node:http';

/** The body of a request, as its bytes; of no more than `limit`. */
export async function readBody(request: IncomingMessage, limit: number): Promise<Buffer> {
  const chunks: Buffer[] = [];
  let size = 0;
  // Left open, since the connection still has to carry the answer.
  for await (const chunk of request.iterator({ destroyOnReturn: false }) as AsyncIterable<Buffer>) {
    size += chunk.length;
    if (size > limit) {
      throw new PayloadTooLargeException(`Send at most ${limit} bytes`);
    }
    chunks.push(chunk);
  }
  return Buffer.concat(chunks);
}
