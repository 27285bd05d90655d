import { Injectable, Logger, type OnApplicationShutdown } from '@nestjs/common';
import { Redis } from 'ioredis';
import type { Chunk } from './corpus.js';
import { redisUrl } from './redis.js';

/** The vectors in Redis: a hash for each corpus, with a field for each line. */
@Injectable()
export class VectorStore implements OnApplicationShutdown {
  private readonly logger = new Logger(VectorStore.name);
  private readonly redis = new Redis(redisUrl).on('error', ({ message }: Error) =>
    this.logger.warn(`Redis: ${message}`),
  );

  /**
   * Redis stores all vectors of a chunk or none, since this is one command. A chunk that is saved
   * again replaces its vectors.
   */
  async save({ corpus, first }: Chunk, vectors: readonly Float32Array[]): Promise<void> {
    const fields = vectors.map((vector, index) => [`${first + index}`, bytesOf(vector)] as const);
    await this.redis.hset(keyOf(corpus), new Map(fields));
  }

  /** The number of lines that have a vector. */
  count(corpus: string): Promise<number> {
    return this.redis.hlen(keyOf(corpus));
  }

  /** The vectors of the chunk's lines, or undefined before it is saved. */
  async load({ corpus, first, lines }: Chunk): Promise<readonly Float32Array[] | undefined> {
    const fields = lines.map((_, index) => `${first + index}`);
    const found = await this.redis.hmgetBuffer(keyOf(corpus), ...fields);
    const vectors = found.filter((bytes) => bytes !== null).map(vectorOf);
    return vectors.length === lines.length ? vectors : undefined;
  }

  async onApplicationShutdown() {
    await this.redis.quit();
  }
}

function keyOf(corpus: string): string {
  return `vectors:${corpus}`;
}

function bytesOf({ buffer, byteOffset, byteLength }: Float32Array): Buffer {
  return Buffer.from(buffer as ArrayBuffer, byteOffset, byteLength);
}

function vectorOf(bytes: Buffer): Float32Array {
  // A copy, since the bytes of a Buffer may begin at any address.
  return new Float32Array(Uint8Array.from(bytes).buffer);
}
