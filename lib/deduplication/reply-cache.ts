import { Logger } from '@nestjs/common';
import { messageOf } from '../errors.js';
import { decodeReply, encodeReply } from './reply-codec.js';
import type { ReplyCacheOptions } from '../definition/serving-definition.js';

/** A store of replies: the part of a cache manager that is used. */
export interface ReplyStore {
  get(key: string): Promise<unknown>;
  set(key: string, value: string, ttl: number): Promise<unknown>;
}

/** Milliseconds between two warnings: a store that is down fails every call. */
const BETWEEN_WARNINGS = 60_000;

/**
 * The replies of a serving in a store. A store that fails or does not answer costs a call time, and
 * nothing else.
 */
export class ReplyCache {
  private readonly logger = new Logger('Serving');
  private readonly lookups = new Set<Promise<unknown>>();
  private warnedAt = -BETWEEN_WARNINGS;

  constructor(
    private readonly serving: string,
    private readonly store: ReplyStore,
    private readonly options: Required<ReplyCacheOptions>,
  ) {}

  /** The stored reply for the identity, if there is one. */
  find(identity: string): Promise<{ readonly reply: unknown } | undefined> {
    const lookup = this.lookUp(identity);
    this.lookups.add(lookup);
    void lookup.then(() => this.lookups.delete(lookup));
    return lookup;
  }

  /** Stores the reply for later calls; nothing waits for that. */
  async keep(identity: string, reply: unknown): Promise<void> {
    try {
      await this.store.set(this.keyOf(identity), encodeReply(reply), this.options.ttl);
    } catch (error) {
      this.warn('A reply was not kept', error);
    }
  }

  /** Resolves when no lookup is under way. */
  async idle(): Promise<void> {
    while (this.lookups.size > 0) {
      await Promise.all(this.lookups);
    }
  }

  private async lookUp(identity: string): Promise<{ readonly reply: unknown } | undefined> {
    try {
      const text = await within(this.options.timeout, this.store.get(this.keyOf(identity)));
      return typeof text === 'string' ? { reply: decodeReply(text) } : undefined;
    } catch (error) {
      this.warn('A reply was not found', error);
      return undefined;
    }
  }

  private keyOf(identity: string): string {
    // The length of the name keeps the keys of different servings apart.
    return `nestjs-serving:${this.serving.length}:${this.serving}:${identity}`;
  }

  private warn(what: string, error: unknown): void {
    const now = performance.now();
    if (now - this.warnedAt >= BETWEEN_WARNINGS) {
      this.warnedAt = now;
      this.logger.warn(
        `The cache of serving "${this.serving}": ${what}: ${messageOf(error)}; calls go on without`,
      );
    }
  }
}

async function within<T>(milliseconds: number, answer: Promise<T>): Promise<T> {
  let timer: NodeJS.Timeout | undefined;
  const late = new Promise<never>((_, reject) => {
    timer = setTimeout(
      () => reject(new Error(`no answer within ${milliseconds} ms`)),
      milliseconds,
    );
  });
  try {
    return await Promise.race([answer, late]);
  } finally {
    clearTimeout(timer);
  }
}
